"""Scripted policy of the matrix; it spells its replies in unusual token ids and logs them.

No tokenizer would choose these ids, so a gateway that tokenizes a reply again is noticed.
"""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import aclosing
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from agentrl_core.engines.scripted import ScriptedEngine

TEMPLATE = Path(__file__).parent.parent / "chat" / "templates" / "hermes.jinja"
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TAGS = ("<tool_call>", "</tool_call>")
CORPUS = "one two three the sum of a and b is what about it then hello again there assistant user tool name arguments "


def write_model(directory: Path) -> Path:
    """Write a byte-level BPE tokenizer whose words are longer than a character, with a Hermes template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([CORPUS] * 4, trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIALS])
    tokenizer.add_tokens([AddedToken(text, special=False) for text in TAGS])
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "chat_template.jinja").write_text(TEMPLATE.read_text(encoding="utf-8"), encoding="utf-8")
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    return directory


class SpellingEngine(ScriptedEngine):
    """Says the texts in `replies` letter by letter; its log is the witness of what was asked and sampled.

    `stall_at` makes the next call stop in its middle, behind so many tokens, until `resume`.
    """

    def __init__(self, chat, model_dir):
        super().__init__(replies=self._spell_next, model_dir=model_dir, context_length=100_000)
        self.chat = chat
        self.replies: list[str] = []
        self.stall_at: int | None = None
        self.stalled = threading.Event()
        self._ended_one = threading.Condition()
        self.start()

    async def generate(self, request):
        """Say the next text; `has_ended` hears of it once it is in the log."""
        try:
            async with aclosing(super().generate(request)) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            with self._ended_one:
                self._ended_one.notify_all()

    async def has_stalled(self):
        """Wait until a call stands still in its middle."""
        assert await asyncio.to_thread(self.stalled.wait, 10)
        self.stalled.clear()

    async def has_ended(self, count):
        """Wait until so many calls are in the log, then go on with the next."""

        def waiting():
            with self._ended_one:
                return self._ended_one.wait_for(lambda: len(self.log) >= count, 10)

        assert await asyncio.to_thread(waiting)
        self.stall_at = None
        await self.resume()

    def _spell_next(self, _prompt_ids, _number):
        ids = [token for letter in self.replies.pop(0) for token in self.chat.encode(letter)]
        return [*ids, *self.chat.stop_token_ids[:1]]

    async def _say(self, job, token):
        if self.stall_at is not None and len(job.ids) - len(job.request.prompt_ids) == self.stall_at:
            self.stall_at = None
            await self.pause()
            self.stalled.set()
        return await super()._say(job, token)
