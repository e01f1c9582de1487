"""Mutations of attention over the token trie, in each implementation."""

from tests.mutations.mutation import of

MODELS = "tests/training/attention/test_models.py::test_logprobs_and_gradients_are_those_of_each_sequence_alone"
EXACT = "tests/training/attention/test_exactness.py"
DFS = ("tests/training/attention/test_dfs.py",)
WALKED = tuple(f"{MODELS}[{name}]" for name in ("qwen3_5_text", "lfm2", "mamba2", "qwen2"))
MERGED = tuple(f"{MODELS}[{name}]" for name in ("qwen3", "cohere", "granite", "gemma2"))

TABLE = [
    *of(
        "training/attention/rect.py",
        (f"{MODELS}[qwen3]", f"{EXACT}::test_merged_equals_unmerged[rect]", "tests/training/attention/test_rect.py"),
        {
            "the other one's share": (
                "torch.sigmoid(part_weight - so_far_weight)",
                "torch.sigmoid(so_far_weight - part_weight)",
            ),
            "siblings see each other": (
                "own = (..., slice(start, call.end), slice(None))\n        part, part_weight",
                "own = (..., slice(start, stop), slice(None))\n        part, part_weight",
            ),
            "below a branch only": (
                "covered = stop\n            continue",
                "covered = call.end\n            continue",
            ),
            "roots in the calls of others": (
                "limit = start + _SMALL if start >= root_stop else min(start + _SMALL, root_stop)",
                "limit = start + _SMALL",
            ),
            "neighbours in a call see each other": (
                "(place[:, None] < seen_until)",
                "(place[:, None] < seen_until + 1)",
            ),
            "a single node not causal": (
                "attend(query, key, value, 0.0, mask is None, attn_mask=mask, scale=scale)",
                "attend(query, key, value, 0.0, False, attn_mask=mask, scale=scale)",
            ),
            "another scale in the gradient": ("scale=ctx.scale", "scale=1.0"),
            "gradient of queries from the last node only": ("to_query[below] += part", "to_query[below] = part"),
            "gradient of queries from the root lost": ("to_query[below] = part", "to_query[below] = 0"),
            "another log-sum-exp in the gradient": (
                "weight[..., start:stop].contiguous()",
                "weight[..., start:stop].sub(0.1)",
            ),
        },
    ),
    *of(
        "training/attention/dense.py",
        (f"{EXACT}::test_merged_equals_unmerged[dense]",),
        {
            "not causal": ("return mask.tril_()", "return mask"),
            "siblings see each other": ("mask[start:stop, start:end] = True", "mask[start:stop, start:stop] = True"),
        },
    ),
    *of(
        "training/attention/dfs.py",
        DFS,
        {
            "a sibling after its sibling": (
                ".stop <= segment.start:\n                above.pop()\n",
                ".stop < segment.start:\n                above.pop()\n",
            ),
            "a sibling after its sibling, backward": (
                ".stop <= segment.start:\n                above.pop().backward",
                ".stop < segment.start:\n                above.pop().backward",
            ),
            "tokens alone after a cache": ("alone = end - start == 1 and", "alone = end - start == 0 and"),
            "a leaf of one token run once": ("own.repeat(2) if self.lone else own", "own"),
            "predictions of the head lost": (
                "first = self.start - (self.head == self.start - 1)",
                "first = self.start",
            ),
            "leaves without their past": (
                "if parent is None and segment.stop == segment.end",
                "if segment.stop == segment.end",
            ),
            "gradient of the last child only": ("state.grad if so_far is None else so_far + state.grad", "state.grad"),
            "gradient stops at a branch": ("if state.grad is not None:", "if state.grad is not None and index < 0:"),
            "frozen weights have a gradient": (
                "trained = torch.is_grad_enabled() and any(",
                "trained = torch.is_grad_enabled() or any(",
            ),
            "every state held until the end": ("return state.detach().requires_grad_()", "return state"),
        },
    ),
    *of(
        "training/attention/branch_cache.py",
        (*WALKED, *DFS),
        {
            "states written in place": ("held[state_idx].clone()", "held[state_idx]"),
            "children share a layer": ("child = copy.copy(layer)", "child = layer"),
            "children share a cache": ("child.layers = [", "self.layers = child.layers = ["),
            "states in a dictionary forgotten": (
                "return {key: renew(item) for key, item in value.items()}",
                "return value",
            ),
            "any cache trusted": ('in {names}" if kinds else None', 'in {names}" if not kinds else None'),
        },
    ),
    *of(
        "training/attention/tree.py",
        ("tests/training/attention/test_tree.py", *MERGED, *DFS),
        {
            "positions run through the trie": (
                "pad(batch.positions, padding)[None]",
                "pad(torch.arange(len(batch.positions)), padding)[None]",
            ),
            "states one token early": (
                "torch.zeros_like(wanted.place),\n                wanted.place,",
                "torch.zeros_like(wanted.place),\n                (wanted.place - 1).clamp_min(0),",
            ),
            "the model's own scale left out": ("if scaling is None else scaling", "if scaling is not None else 1.0"),
            "capped scores not noticed": ('("softcap", "s_aux", "position_bias")', '("s_aux", "position_bias")'),
            "what is longer than a window not handed on": ("batch.trie.depth > self.window:", "batch.trie.depth < 0:"),
        },
    ),
    *of(
        "training/attention/rows.py",
        (f"{MODELS}[mamba]", f"{EXACT}::test_merged_equals_unmerged[rows]", "tests/training/attention/test_rows.py"),
        {
            "predictions in the order of the rows": ("torch.cat(chosen).argsort()", "torch.cat(chosen)"),
            "places in the trie": ("batch.positions[wanted.place[own]]", "batch.positions[wanted.place[own]] - 1"),
            "rows of any length padded together": ("<= _PADDED * real", "<= 100 * _PADDED * real"),
        },
    ),
    *of(
        "training/attention/flex.py",
        ("tests/training/attention/test_flex.py",),
        {
            "a token does not see itself": ("(key <= query)", "(key < query)"),
            "seen one token too far": ("(query < stop[key])", "(query <= stop[key])"),
            "mixed blocks told as whole": ("blocks.amin(1) >= start + BLOCK", "blocks.amax(1) >= start + BLOCK"),
            "mixed blocks lost": ("(blocks.amax(1) > start)", "(blocks.amax(1) > start + BLOCK)"),
            "blocks on the diagonal lost": (" | (start == start.T)", ""),
            "the wrong blocks listed": ("descending=True", "descending=False"),
            "twice as many lengths": ("_SIZES.bit_length())", "_SIZES.bit_length() + 1)"),
        },
    ),
]
