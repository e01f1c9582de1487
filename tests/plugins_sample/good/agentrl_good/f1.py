"""Sample scorer: token F1."""


def score(request):
    found, wanted = request.answer.split(), (request.reference or "").split()
    common = sum(min(found.count(word), wanted.count(word)) for word in set(found))
    return 2 * common / (len(found) + len(wanted)) if found or wanted else 1.0
