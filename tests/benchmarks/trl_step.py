"""Train steps of TRL's GRPOTrainer on given rows; runs in TRL's environment, without agentrl."""

import json
import sys
import time
from functools import partial
from pathlib import Path

import torch
from datasets import Dataset
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class GivenRows(GRPOTrainer):
    """Trains on rows that were sampled before: what follows on them is TRL's own."""

    rows: list

    def _generate_and_score_completions(self, _inputs):
        prompts = [torch.tensor(row["prompt"]) for row in self.rows]
        outputs = [torch.tensor(row["output"]) for row in self.rows]
        left = partial(pad_sequence, batch_first=True, padding_side="left")
        right = partial(pad_sequence, batch_first=True)
        return {
            "prompt_ids": left(prompts),
            "prompt_mask": left([torch.ones_like(ids) for ids in prompts]),
            "completion_ids": right(outputs),
            "completion_mask": right([torch.ones_like(ids) for ids in outputs]),
            "advantages": torch.tensor([row["advantage"] for row in self.rows]),
            "num_items_in_batch": torch.tensor(sum(map(len, outputs))),
        }


class Watch(TrainerCallback):
    """CPU seconds from the beginning of each step to the end of its optimizer's."""

    def __init__(self):
        self.spent, self._begun = [], 0.0

    def on_step_begin(self, *_arguments, **_more):
        self._begun = time.process_time()

    def on_step_end(self, *_arguments, **_more):
        self.spent.append(time.process_time() - self._begun)


def main():
    """Train as the task says, and print what it took."""
    torch.set_num_threads(1)
    told = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    count = len(told["rows"])
    watch = Watch()
    trainer = GivenRows(
        model=AutoModelForCausalLM.from_pretrained(told["model"], dtype=torch.float32),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=GRPOConfig(
            output_dir=told["folder"],
            per_device_train_batch_size=count // told["accumulated"],
            gradient_accumulation_steps=told["accumulated"],
            num_generations=count,
            max_steps=told["steps"],
            learning_rate=told["lr"],
            lr_scheduler_type="constant",
            beta=0.0,
            temperature=1.0,
            bf16=False,
            gradient_checkpointing=False,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_steps=1,
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list([{"prompt": "any"}] * count),
        processing_class=AutoTokenizer.from_pretrained(told["model"]),
        callbacks=[watch],
    )
    trainer.rows = told["rows"]
    trainer.train()
    norms = [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    peak = next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
    print(json.dumps({"cpu_s": watch.spent, "grad_norm": norms[0], "peak_rss_mb": peak}))  # noqa: T201 - to who asked


if __name__ == "__main__":
    main()
