"""TRL's GRPOTrainer on a real model, sampling included; runs in TRL's environment, without agentrl."""

import json
import re
import sys
import time
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class Watch(TrainerCallback):
    """CPU seconds from the end of one step to the end of the next."""

    def __init__(self):
        self.spent, self._before = [], 0.0

    def on_train_begin(self, *_arguments, **_more):
        self._before = time.process_time()

    def on_step_end(self, *_arguments, **_more):
        now = time.process_time()
        self.spent.append(now - self._before)
        self._before = now


def first_word(completions, answer, **_more):
    """Return 1 for each reply whose first word is the answer; the same rule as agentrl's in trl_loop.py."""
    said = [re.findall("[a-z]+", chat[0]["content"].lower())[:1] for chat in completions]
    return [float(words == [wanted]) for words, wanted in zip(said, answer, strict=True)]


def main():
    """Train as the file says that is the only argument, and print what it took."""
    torch.set_num_threads(1)
    told = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    folder = Path(told["folder"])
    rows = [json.loads(line) for line in (folder / "tasks.jsonl").read_text(encoding="utf-8").splitlines()]
    watch = Watch()
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32),
        reward_funcs=first_word,
        args=GRPOConfig(
            output_dir=str(folder / "trl"),
            per_device_train_batch_size=told["rows"],
            gradient_accumulation_steps=told["tasks"] * told["group"] // told["rows"],
            num_generations=told["group"],
            max_completion_length=told["max_tokens"],
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
        train_dataset=Dataset.from_list([{"prompt": row["messages"], "answer": row["answer"]} for row in rows]),
        processing_class=AutoTokenizer.from_pretrained(folder / "model"),
        callbacks=[watch],
    )
    trainer.train()
    rewards = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    peak = next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
    print(json.dumps({"cpu_s": watch.spent, "rewards": rewards, "peak_rss_mb": peak}))  # noqa: T201 - to who asked


if __name__ == "__main__":
    main()
