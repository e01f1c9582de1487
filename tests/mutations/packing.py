"""Mutations of the token trie, its micro-batches and the shares of ranks."""

from tests.mutations.mutation import of

PACKING = ("tests/batching/test_packing.py",)
STYLES = ("tests/batching/test_samples.py",)

TABLE = [
    *of(
        "batching/trie.py",
        ("tests/batching/test_trie.py",),
        {
            "a path taken back by one branch only": ("while path and path[-1][0] >=", "if path and path[-1][0] >="),
            "branches grow one token too early": (
                "path[-1][1] + shared - path[-1][0] if path",
                "path[-1][1] + shared - path[-1][0] - 1 if path",
            ),
            "a node not cut where another leaves it": ("borders |= {len(ids), last} - {-1}", "borders |= {len(ids)}"),
            "a growing dialogue cut at every turn": ("if last != len(ids):", "if shared * _BYTES < len(key):"),
            "positions count from the branch": ("range(shared, shared + len(new))", "range(len(new))"),
            "a sibling below its sibling": (">= positions[start]", "> positions[start]"),
            "a node seen one token too far": ("stops[open_nodes.pop()] = start", "stops[open_nodes.pop()] = start + 1"),
            "one shared token less": ("high = middle - 1", "high = middle - 2"),
            "places looked up one run too early": ('side="right"', 'side="left"'),
            "unmerged sequences in one place": ("paths.append(((0, start),))", "paths.append(((0, 0),))"),
            "overlap with the one before only": (
                "self._keys[max(at - 1, 0) : at + 1]",
                "self._keys[max(at - 1, 0) : at]",
            ),
            "shared tokens of two groups counted twice": ("- min(trunk, len(first)", "- 0 * min(trunk, len(first)"),
            "more saved than a group's trunk": ("min(trunk, len(first) -", "max(trunk, len(first) -"),
        },
    ),
    *of(
        "batching/packing.py",
        PACKING,
        {
            "the last loss token forwarded": (
                "sample.ids[: sample.positions[-1]]",
                "sample.ids[: sample.positions[-1] + 1]",
            ),
            "predicted at its own place": ("[position - 1 for position in", "[position for position in"),
            "temperature left out": (
                'wanted["temperature"][part] = sample.temperatures',
                'wanted["temperature"][part] = 1.0',
            ),
            "every prediction on the first row": ("row[part] = index", "row[part] = 0"),
            "tokens without advantage not counted": (
                "torch.ones_like(self.advantages)",
                "(self.advantages != 0).to(self.advantages.dtype)",
            ),
            "denominators of the first micro-batch": (
                "return Update.of(batches,",
                "return Update.of(batches[:1],",
            ),
            "advantages for behaviour logprobs": ("floats(sample.logprobs", "floats(sample.advantages"),
            "one token over the budget": (
                "(total := one.tokens_with(unit)) <= joined_tokens",
                "(total := one.tokens_with(unit)) <= joined_tokens + 1",
            ),
            "the smallest group first": ("key=lambda unit: -unit.tokens", "key=lambda unit: unit.tokens"),
            "where it adds the most": ("min(fitting, key", "max(fitting, key"),
            "whole sequences parted": (
                'whole_records=whole_sequences and config.sequence == "record"',
                "whole_records=False",
            ),
            "as many groups as updates parted": (">= updates else by_record", "> updates else by_record"),
        },
    ),
    *of(
        "training/ranks.py",
        ("tests/training/test_rank_shares.py",),
        {
            "to the rank with the most": ("loads.index(min(loads))", "loads.index(max(loads))"),
            "no group parted": ("min(ranks, math.ceil(sizes[group] / fair))", "1"),
            "a record parted": ("records.setdefault(sample.record,", "records.setdefault(id(sample),"),
            "the trunk counted in every record": ("_tokens(of_record) - trunk, 1)", "_tokens(of_record), 1)"),
            "parted at the beginning of records": ("(before + tokens / 2) * count", "before * count"),
            "trunk off by one": ("if pair[0] != pair[1]), len(left))", "if pair[0] == pair[1]), len(left))"),
        },
    ),
    *of(
        "batching/samples.py",
        STYLES,
        {
            "loss one token late": ("range(len(ids), len(ids) + count)", "range(len(ids) + 1, len(ids) + count + 1)"),
            "the last loss token cut": ("ids[: positions[-1] + 1]", "ids[: positions[-1]]"),
            "a shared call in the loss of every leaf": (" and item.id not in done]", "]"),
            "calls of others trained": ("if is_trained(item) and item.id in advantages:", "if item.id in advantages:"),
            "one version for all tokens": (
                "versions.extend(item.output_versions)",
                "versions.extend([item.output_versions[0]] * count)",
            ),
            "concat leaves calls apart": ("sequences=[sequence] * len(sample.positions)", "sequences=sample.sequences"),
            "sequences of concat numbered anew in each record": ("len(samples) + place)", "place)"),
        },
    ),
]
