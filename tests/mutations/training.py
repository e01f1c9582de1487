"""Mutations of the optimizer update: its loss and step, its checks, and the ranks that make it together."""

from tests.mutations.mutation import of, of_file

ROUTING = ("tests/training/test_routing.py",)
UPDATES = (
    *of_file(
        "tests/training/test_learner.py",
        "a_loss_sees_how_many_versions_its_tokens_lag",
        "proximal_logprobs_are_those_before_the_step",
        "a_large_gradient_is_cut_to_the_norm_allowed_and_reported_whole",
        "adamw_decays_and_remembers_as_configured",
        "a_gradient_that_is_not_finite_is_refused",
    ),
    *of_file("tests/training/test_policies.py", "an_interpolated_proximal_policy_costs_no_forward_at_all"),
    *of_file(
        "tests/training/test_diagnosis.py",
        "exactly_the_records_that_are_not_finite_are_named_and_nothing_has_changed",
    ),
    *of_file(
        "tests/training/test_learner.py",
        "neither_loss_nor_gradient_depends_on_micro_batches",
    ),
)
DIAGNOSIS = (
    *of_file(
        "tests/training/test_diagnosis.py",
        "bisecting_finds_all_who_are_to_blame_in_few_looks",
        "the_proximal_logprobs_of_those_left_stay_theirs",
        "an_advantage_that_is_not_finite_names_its_record",
    ),
    *of_file(
        "tests/training/test_diagnosis.py",
        "skipping_takes_the_update_that_would_have_been_without_the_record",
    ),
)
GAPS = (
    "tests/training/test_logprob_gap.py",
    *of_file(
        "tests/training/test_diagnosis.py",
        "a_gap_is_measured_on_tokens_of_lag_zero_only",
        "a_gap_is_the_largest_of_all_micro_batches",
    ),
    *of_file("tests/training/test_learner.py", "a_wrong_behaviour_logprob_stops_the_run_and_is_named"),
)
RANKS = ("tests/training/test_ranks.py",)

TABLE = [
    *of(
        "training/gradient_checkpointing.py",
        ("tests/training/test_gradient_checkpointing.py",),
        {
            "nothing computed again": ('{"gradient_checkpointing": True,', '{"gradient_checkpointing": False,'),
            "dropout on": ("mode, layer.training = layer.training, False", "mode = layer.training"),
            "layers left in training": ("layer.training = mode\n\n\n", "layer.training = True\n\n\n"),
            "computed again with another attention": ("(nullcontext(), again())", "(nullcontext(), nullcontext())"),
        },
    ),
    *of(
        "training/routing.py",
        ROUTING,
        {
            "experts chosen anew": ("indices = recorded.long()", "indices = func(*args, **kwargs).indices"),
            "passes in the reverse order": ("iter(routes.choices)", "iter(routes.choices[::-1])"),
            "replay that does not end": (
                "finally:\n            self._mode = None",
                "finally:\n            self._mode = mode",
            ),
            "weights of before": (
                "(scores.gather(dim, indices), indices)",
                "(scores.gather(dim, indices).detach(), indices)",
            ),
        },
    ),
    *of(
        "training/ranks.py",
        RANKS,
        {
            "gradients averaged": (
                "torch.split(flat, [",
                "torch.split(flat / self.size if flat.is_floating_point() else flat, [",
            ),
            "each rank's own tokens": ("tokens=counts[0],", "tokens=of_share.tokens,"),
        },
        slow=True,
    ),
    *of(
        "training/ranks.py",
        (f"{RANKS[0]}::test_tensors_are_sent_in_buckets_of_one_type",),
        {
            "buckets of one number too many": ("> _BUCKET", "> _BUCKET + 1"),
            "buckets of several types": ("full or tensor.dtype != bucket[0].dtype or", "full or"),
        },
        slow=True,
    ),
    *of(
        "training/optimizer.py",
        ROUTING,
        {
            "experts not replayed": (
                "return nullcontext() if self.routes is None else self.routes.replayed()",
                "return nullcontext()",
            ),
        },
    ),
    *of(
        "batching/packing.py",
        of_file(
            "tests/training/test_learner.py",
            "a_loss_sees_how_many_versions_its_tokens_lag",
            "a_style_has_the_gradient_of_a_row_for_each_call",
        ),
        {
            "lag with the wrong sign": ("lag=version - self.version", "lag=self.version - version"),
            "records for sequences": ("sequence=self.sequence,", "sequence=self.record,"),
        },
    ),
    *of(
        "training/master_weights.py",
        ("tests/training/test_master_weights.py",),
        {
            "gradients summed in bf16": ("gradient.float()", "gradient"),
            "gradient of the last micro-batch": ("if master.grad is None:", "if True:"),
            "narrow gradients kept": ("gradient, weight.grad = weight.grad, None", "gradient = weight.grad"),
            "masters not rounded into the module": ("pair.weight.copy_(pair.master)", "pair.weight.copy_(pair.weight)"),
            "masters not restored": ("pair.master.copy_(values[name])", "pair.master.copy_(pair.weight)"),
        },
    ),
    *of(
        "training/checkpoint.py",
        ("tests/training/test_master_weights.py",),
        {"masters not read": ("if path.is_file():\n            _fill(", "if False:\n            _fill(")},
    ),
    *of(
        "training/offload.py",
        ("tests/training/test_offload.py",),
        {
            "never reclaimed": ("while self._away:", "while False:"),
        },
    ),
    *of(
        "training/optimizer.py",
        UPDATES,
        {
            "gradients of the step before": (
                "self._masters.zero_grad()\n        denominators",
                "denominators",
            ),
            "loss of the last micro-batch": ("value += done.loss.item()", "value = done.loss.item()"),
            "gradient not clipped": ("self._max_grad_norm)", 'float("inf"))'),
            "proximal policy of now": (
                "batch.logprobs.detach() if before.proximal is None else before.proximal",
                "batch.logprobs.detach()",
            ),
            "proximal policy never interpolated": (
                'if self._proximal_method == "loglinear":',
                'if self._proximal_method == "":',
            ),
            "other moments": ("lr=lr, betas=betas,", "lr=lr,"),
            "a gradient that is not finite taken": ("if not torch.isfinite(norm):", "if torch.isnan(norm) and False:"),
        },
    ),
    *of(
        "training/diagnosis.py",
        DIAGNOSIS,
        {
            "the first half alone": ("is_finite) | bisect(records[middle:], is_finite) or", "is_finite) or"),
            "nobody blamed for what all are": (
                "bisect(records[middle:], is_finite) or set(records)",
                "bisect(records[middle:], is_finite)",
            ),
            "denominators of before": (
                "return Update.of(batches, batches[0].num_sequences, device=batches[0].ids.device)",
                "return attrs.evolve(update, micro_batches=tuple(batches))",
            ),
            "other records' proximal policy": (
                "[item.select(tokens) for item, tokens in zip(before, kept, strict=True)]",
                "[*before]",
            ),
            "an input that is not finite not seen": (
                '"advantage": batch.advantages,',
                '"advantage": batch.advantages.nan_to_num(),',
            ),
        },
    ),
    *of(
        "training/logprob_gap.py",
        GAPS,
        {
            "stale tokens compared": (
                "fresh = batch.version == self._version",
                "fresh = batch.version <= self._version",
            ),
            "divergence off by its linear part": ("differences.expm1() - differences", "differences.expm1()"),
            "divergence the other way round": (
                "(logprobs - batch.behaviour_logprobs)[fresh]",
                "(batch.behaviour_logprobs - logprobs)[fresh]",
            ),
            "largest gap of the last micro-batch": ("if largest > self._worst[0]:", "if largest:"),
            "the wrong token named": (".sum()) - 1\n", ".sum())\n"),
            "no limit of the mean": ('"mean", mean, limits.mean', '"mean", mean, None'),
        },
    ),
    *of(
        "training/metrics.py",
        ("tests/training/test_metrics.py",),
        {
            "means weigh micro-batches alike": ("+ float(count)", "+ 1.0"),
            "ratios inverted": (
                "batch.logprobs.detach() - batch.behaviour_logprobs",
                "batch.behaviour_logprobs - batch.logprobs.detach()",
            ),
            "masked tokens in a bin": (".index_add(0, bins, batch.mask)", ".index_add(0, bins, batch.mask * 0 + 1)"),
            "lag with the wrong sign": ("(version - of, count)", "(of - version, count)"),
        },
    ),
]
