"""Writes GGUF files, quantizes them and computes logits with llama.cpp, in its own interpreter.

Usage: python _gguf_program.py FOLDER. Reads `model.json` and `weights.npz` there, leaves a file per
type and `answers.npz`: logits of one prompt, or losses of many rows. It imports nothing of this
project.
"""

import ctypes
import json
import pathlib
import sys

import gguf
import llama_cpp  # pyright: ignore[reportMissingImports]
import numpy as np

FILE_TYPES = {
    "F16": llama_cpp.LLAMA_FTYPE_MOSTLY_F16,
    "BF16": llama_cpp.LLAMA_FTYPE_MOSTLY_BF16,
    "Q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0,
    "Q4_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0,
    "Q4_1": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_1,
    "Q5_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q5_0,
    "Q5_1": llama_cpp.LLAMA_FTYPE_MOSTLY_Q5_1,
    "Q4_K": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_S,
    "Q5_K": llama_cpp.LLAMA_FTYPE_MOSTLY_Q5_K_S,
    "Q6_K": llama_cpp.LLAMA_FTYPE_MOSTLY_Q6_K,
}
"""What llama.cpp makes of an F32 file; with `pure` every matrix gets the one type."""


def write(folder, asked):
    """Write the F32 file with the fields and the weights given."""
    family = asked.get("family", "llama")
    writer = gguf.GGUFWriter(folder / "F32.gguf", family)
    writer.add_tokenizer_model("none")
    writer.add_uint32(f"{family}.vocab_size", len(asked["tokens"]))
    for name, value in asked["fields"].items():
        if isinstance(value, int):
            writer.add_uint32(f"{family}.{name}", value)
        else:
            writer.add_float32(f"{family}.{name}", value)
    for name, weights in np.load(folder / "weights.npz").items():
        writer.add_tensor(name, weights)
    close(writer)


def write_vocabulary(path, asked, pre):
    """Write a file with nothing but a vocabulary, cut by one of the pre-tokenizers."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(asked["tokens"])
    writer.add_token_types([gguf.TokenType.NORMAL] * (len(asked["tokens"]) - 1) + [3])
    writer.add_token_merges(asked["merges"])
    # Some pre-tokenizers begin prompts with a token, which has to be named.
    writer.add_bos_token_id(len(asked["tokens"]) - 1)
    writer.add_eos_token_id(len(asked["tokens"]) - 1)
    close(writer)


def close(writer):
    """Write what was added."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def quantize(folder, kind, keeps_tables):
    """Make a file of another type of the F32 file, of all its matrices or of those in layers."""
    settings = llama_cpp.llama_model_quantize_default_params()
    if keeps_tables:
        settings.token_embedding_type = settings.output_tensor_type = llama_cpp.GGML_TYPE_F32
    settings.ftype, settings.pure, settings.nthread = FILE_TYPES[kind], True, 2
    source, target = (str(folder / f"{name}.gguf").encode() for name in ("F32", kind))
    if llama_cpp.llama_model_quantize(source, target, ctypes.byref(settings)):
        raise SystemExit(f"llama.cpp could not write {kind}")


def losses(model, rows):
    """Return the mean loss of each row of tokens, in nats per token."""
    found = []
    for row in rows:
        model.reset()
        model.eval(row)
        logits = np.array(model.scores[: len(row) - 1], dtype=np.float64)
        top = logits.max(1)
        total = top + np.log(np.exp(logits - top[:, None]).sum(1))
        found.append(np.mean(total - logits[np.arange(len(row) - 1), row[1:]]))
    return np.array(found)


def main():
    """Write, quantize, compute."""
    folder = pathlib.Path(sys.argv[1])
    asked = json.loads((folder / "model.json").read_text())
    write(folder, asked)
    answers = {"version": np.array(llama_cpp.__version__)}
    for kind in asked["types"]:
        if kind != "F32":
            quantize(folder, kind, bool(asked.get("rows")))
        model = llama_cpp.Llama(
            str(folder / f"{kind}.gguf"),
            n_ctx=len(asked["prompt"]),
            n_batch=len(asked["prompt"]),
            n_threads=asked["threads"],
            n_threads_batch=asked["threads"],
            logits_all=True,
            flash_attn=False,
            type_k=llama_cpp.GGML_TYPE_F32,
            type_v=llama_cpp.GGML_TYPE_F32,
            verbose=False,
        )
        if asked.get("rows"):
            answers[kind] = losses(model, asked["rows"])
        else:
            model.eval(asked["prompt"])
            answers[kind] = np.array(model.scores[: len(asked["prompt"])])
        model.close()
    for pre in asked["splitters"]:
        path = folder / f"vocabulary-{pre}.gguf"
        write_vocabulary(path, asked, pre)
        model = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
        for index, text in enumerate(asked["texts"]):
            ids = model.tokenize(text.encode(), add_bos=False, special=True)
            answers[f"{pre} {index}"] = np.array(ids)
        model.close()
    np.savez(folder / "answers.npz", allow_pickle=False, **answers)


if __name__ == "__main__":
    main()
