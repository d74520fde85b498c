"""llama.cpp with continuous batching, as its server does it.

Tokens of all sequences that decode go first into a batch, then prompts up to its size.
"""

import ctypes

import llama_cpp  # pyright: ignore[reportMissingImports]
import numpy as np


class Engine:
    """A context with a cache of its own for each sequence."""

    def __init__(self, options):
        self.budget, self.name = options["token_budget"], f"llama.cpp ({llama_cpp.__version__})"
        llama_cpp.llama_backend_init()
        settings = llama_cpp.llama_model_default_params()
        self.model = llama_cpp.llama_model_load_from_file(options["model"].encode(), settings)
        wanted = llama_cpp.llama_context_default_params()
        wanted.n_ctx = options["cache_tokens"]
        wanted.n_batch = wanted.n_ubatch = self.budget
        wanted.n_seq_max = options["max_num_seqs"]
        wanted.n_threads = wanted.n_threads_batch = options["threads"]
        wanted.kv_unified = False
        self.context = llama_cpp.llama_init_from_model(self.model, wanted)
        if not self.context:
            raise SystemExit("llama.cpp made no context")
        self.memory = llama_cpp.llama_get_memory(self.context)
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(
            llama_cpp.llama_model_get_vocab(self.model)
        )
        self.batch = llama_cpp.llama_batch_init(self.budget, 0, 1)
        self.free = list(range(options["max_num_seqs"]))
        self.running = []

    def add(self, index, prompt, length):
        """Queue a request in a free sequence."""
        item = {"index": index, "rest": prompt, "place": 0, "missing": length}
        self.running.append(item | {"sequence": self.free.pop()})

    def step(self):
        """Run a step; return the requests that got tokens, with their number."""
        self.batch.n_tokens = 0
        # Those with one token left are decoding, or at the end of their prompt.
        for item in sorted(self.running, key=lambda item: len(item["rest"]) > 1):
            self._fill(item)
        if llama_cpp.llama_decode(self.context, self.batch):
            raise SystemExit("llama.cpp could not decode a batch")
        found = []
        for item in list(self.running):
            row = item.pop("row", None)
            if row is None:
                continue
            item["rest"] = [self._likeliest(row)]
            item["missing"] -= 1
            found.append((item["index"], 1))
            if not item["missing"]:
                self._end(item)
        return found

    def _fill(self, item):
        """Put the next tokens of a sequence into the batch."""
        batch, count = self.batch, min(len(item["rest"]), self.budget - self.batch.n_tokens)
        for token in item["rest"][:count]:
            row = batch.n_tokens
            batch.token[row], batch.pos[row] = token, item["place"]
            batch.n_seq_id[row], batch.seq_id[row][0] = 1, item["sequence"]
            batch.logits[row] = 0
            item["place"] += 1
            batch.n_tokens += 1
        item["rest"] = item["rest"][count:]
        if count and not item["rest"]:
            item["row"] = batch.n_tokens - 1
            batch.logits[item["row"]] = 1

    def _likeliest(self, row):
        """Return the token with the highest logit."""
        logits = llama_cpp.llama_get_logits_ith(self.context, row)
        floats = ctypes.cast(logits, ctypes.POINTER(ctypes.c_float * self.vocabulary)).contents
        return int(np.frombuffer(floats, dtype=np.float32).argmax())

    def _end(self, item):
        """Free a sequence."""
        llama_cpp.llama_memory_seq_rm(self.memory, item["sequence"], -1, -1)
        self.running.remove(item)
        self.free.append(item["sequence"])
