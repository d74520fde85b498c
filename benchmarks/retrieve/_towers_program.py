"""BM25 by bm25s, and a student by sentence-transformers, in their own interpreter.

It first says its name. {"bm25": PATH, "scores": PATH} ranks the documents of a JSON file for its
queries. {"distill": FOLDER, ...} trains the tower in FOLDER/model to return the vectors in
FOLDER/vectors.npy, writes what it makes of FOLDER/asked.json, and says how long training took.
"""

import json
import os
import sys
import time
from pathlib import Path

channel = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

import bm25s  # noqa: E402  # pyright: ignore[reportMissingImports]
import numpy as np  # noqa: E402
import sentence_transformers  # noqa: E402  # pyright: ignore[reportMissingImports]
import torch  # noqa: E402

torch.set_num_threads(1)


def answer(value):
    """Write one line."""
    channel.write(json.dumps(value) + "\n")
    channel.flush()


def bm25(work):
    """Score every document for every query."""
    texts = json.loads(Path(work["bm25"]).read_text())
    index = bm25s.BM25()
    words = [bm25s.tokenize(texts[side], show_progress=False) for side in ("documents", "queries")]
    index.index(words[0], show_progress=False)
    asked = words[1]
    names = {number: word for word, number in asked.vocab.items()}  # pyright: ignore
    rows = [index.get_scores([names[one] for one in row]) for row in asked.ids]  # pyright: ignore
    np.save(work["scores"], np.stack(rows).astype(np.float32))
    return {}


def made(folder):
    """Return the student as a model of theirs: the same weights, pooling and projection."""
    from safetensors.torch import load_file
    from sentence_transformers import SentenceTransformer  # pyright: ignore
    from sentence_transformers.sentence_transformer import modules  # pyright: ignore

    text = modules.Transformer(
        str(folder / "model"),
        max_seq_length=json.loads((folder / "about.json").read_text())["max_tokens"],
    )
    weight = load_file(folder / "projection.safetensors")["projection"]
    pooling = modules.Pooling(weight.shape[1], pooling_mode="mean")
    dense = modules.Dense(
        weight.shape[1], weight.shape[0], bias=False, activation_function=torch.nn.Identity()
    )
    with torch.no_grad():
        dense.linear.weight.copy_(weight)
    return SentenceTransformer(modules=[text, pooling, dense, modules.Normalize()], device="cpu")


def distill(work):
    """Train the student with their trainer, and encode what is asked."""
    from datasets import Dataset  # pyright: ignore
    from sentence_transformers import (  # pyright: ignore
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import (  # pyright: ignore
        EmbedDistillLoss,
    )

    folder = Path(work["distill"])
    model = made(folder)
    asked = json.loads((folder / "asked.json").read_text())
    np.save(folder / "before.npy", model.encode(asked))
    texts = json.loads((folder / "texts.json").read_text())
    labels = np.load(folder / "vectors.npy").tolist()
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(folder / "theirs"),
        max_steps=work["steps"],
        per_device_train_batch_size=work["batch"],
        learning_rate=work["rate"],
        warmup_steps=10,
        weight_decay=0.1,
        adam_beta2=0.95,
        use_cpu=True,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=work["seed"],
    )
    trainer = SentenceTransformerTrainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_dict({"sentence": texts, "label": labels}),
        loss=EmbedDistillLoss(model),
    )
    begin_s = time.process_time()
    trainer.train()
    seconds = time.process_time() - begin_s
    np.save(folder / "after.npy", model.encode(asked))
    return {"seconds": seconds}


VERSIONS = (sentence_transformers.__version__, bm25s.__version__)
answer({"name": f"sentence-transformers {VERSIONS[0]}, bm25s {VERSIONS[1]}"})
for line in sys.stdin:
    asked = json.loads(line)
    answer(bm25(asked) if "bm25" in asked else distill(asked))
