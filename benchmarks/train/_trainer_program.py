"""Trains a decoder of 100 M parameters step by step when asked, with one of two trainers.

`python _trainer_program.py {"engine": "steelyard"}` in our interpreter, "transformers" in the
peer's. A line {"steps": n} is answered by {"seconds": of each step}; between lines the run waits in
its own callback, so both trainers do all that they do in a run.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

WIDTH, LAYERS, HEADS, MLP, VOCABULARY = 768, 12, 12, 2048, 32000
BATCH, LENGTH = 4, 128
STEPS = 1000


class Turns:
    """Waits for a line, lets as many steps pass as it says, and answers with their times."""

    def __init__(self, name):
        self.channel = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._say({"name": name})
        self._seconds, self._left = [], 0
        self._wait()

    def step(self):
        """Count a step that has ended."""
        self._seconds.append(time.perf_counter() - self._begin)
        self._left -= 1
        if not self._left:
            self._say({"seconds": self._seconds})
            self._wait()
        self._begin = time.perf_counter()

    def _wait(self):
        line = sys.stdin.readline()
        if not line:
            os._exit(0)
        self._seconds, self._left = [], json.loads(line)["steps"]
        self._begin = time.perf_counter()

    def _say(self, answer):
        print(json.dumps(answer), file=self.channel, flush=True)


def steelyard(options):
    """Train with this package."""
    import numpy as np

    from steelyard.catalog.architecture import Architecture
    from steelyard.train import TrainConfig
    from steelyard.train.trainer import train

    class Noise:
        bytes_per_token, tokenizer, vocab_size = 1.0, None, VOCABULARY
        tokens = np.random.default_rng(0).integers(0, VOCABULARY, 1 << 20)
        num_tokens, heldout_tokens = len(tokens), tokens[:1024]

        def batch(self, index, batch_size, sequence_length, seed):
            size = batch_size * (sequence_length + 1)
            start = index * size % (self.num_tokens - size)
            return self.tokens[start : start + size].reshape(batch_size, -1)

    shape = Architecture(
        name="gpt-100m",
        hidden_size=WIDTH,
        num_layers=LAYERS,
        num_heads=HEADS,
        num_kv_heads=HEADS,
        head_dim=WIDTH // HEADS,
        intermediate_size=MLP,
        vocab_size=VOCABULARY,
    )
    config = TrainConfig(
        architecture=shape,
        steps=STEPS,
        batch_size=BATCH,
        sequence_length=LENGTH,
        learning_rate=1e-4,
        warmup_steps=10,
        dtype="bf16",
        threads=2,
        compile=options.get("compile", False),
    )
    turns = Turns("steelyard")
    with tempfile.TemporaryDirectory() as folder:
        train(config, Noise(), Path(folder) / "run", on_step=lambda _: turns.step())


def transformers(_):
    """Train with the library's Trainer."""
    import torch
    import transformers as library  # pyright: ignore[reportMissingImports]

    class Noise(torch.utils.data.Dataset):
        tokens = torch.randint(0, VOCABULARY, (1 << 20,), generator=torch.manual_seed(0))

        def __len__(self):
            return len(self.tokens) // LENGTH

        def __getitem__(self, index):
            row = self.tokens[index * LENGTH : (index + 1) * LENGTH]
            return {"input_ids": row, "labels": row}

    class Watch(library.TrainerCallback):
        def on_step_end(self, *_, **__):
            turns.step()

    torch.set_num_threads(2)
    shape = library.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=MLP,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        tie_word_embeddings=True,
        use_cache=False,
    )
    model = library.LlamaForCausalLM(shape)
    turns = Turns(f"transformers.Trainer {library.__version__}")
    with tempfile.TemporaryDirectory() as folder:
        arguments = library.TrainingArguments(
            folder,
            max_steps=STEPS,
            per_device_train_batch_size=BATCH,
            learning_rate=1e-4,
            warmup_steps=10,
            bf16=True,
            use_cpu=True,
            optim="adamw_torch_fused",
            max_grad_norm=1.0,
            weight_decay=0.1,
            adam_beta2=0.95,
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        library.Trainer(model, arguments, train_dataset=Noise(), callbacks=[Watch()]).train()


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    {"steelyard": steelyard, "transformers": transformers}[given["engine"]](given)
