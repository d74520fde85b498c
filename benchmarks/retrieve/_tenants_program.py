"""hnswlib and faiss for tenants on one thread, timed in their own interpreter.

It first says its name. {"load": PATH} takes an .npz file with vectors, queries, the rows of each
tenant ("tenant0", ...) and its true neighbours ("truth0", ...). {"way": W, "tenant": n} finds the
setting of a way that reaches the recall "goal" and is answered by {"knob", "recall", "bytes"};
with "knob" it times all queries, one at a time, after some that bring the caches back:
{"seconds"}. Ways: "per tenant" (a graph of the tenant's vectors), "filter" (one graph of all, with
a filter), "bitmap" (cells with a bitmap).
"""

import contextlib
import json
import os
import sys
import time
from importlib import metadata

import faiss  # pyright: ignore[reportMissingImports]
import hnswlib  # pyright: ignore[reportMissingImports, reportMissingModuleSource]
import numpy as np

channel = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
faiss.omp_set_num_threads(1)
state = {}
K, WARMING = 10, 20
KNOBS = {
    "per tenant": (10, 14, 20, 30, 45, 70, 100, 150, 250, 400),
    "filter": (10, 20, 40, 80, 160, 320, 640),
    "bitmap": (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048),
}


def answer(value):
    """Write one line."""
    channel.write(json.dumps(value) + "\n")
    channel.flush()


def graph(vectors, labels):
    """Return a graph of vectors."""
    made = hnswlib.Index(space="l2", dim=vectors.shape[1])
    made.init_index(max_elements=len(vectors), M=16, ef_construction=200, random_seed=1)
    made.set_num_threads(2)
    made.add_items(vectors, labels)
    made.set_num_threads(1)
    return made


def load(path):
    """Keep the data, and build what tenants share."""
    data = np.load(path)
    state["data"] = {name: data[name] for name in data.files}
    vectors = state["data"]["vectors"]
    cells = int(4 * len(vectors) ** 0.5)
    state["coarse"] = faiss.IndexFlatL2(vectors.shape[1])
    state["ivf"] = faiss.IndexIVFFlat(state["coarse"], vectors.shape[1], cells)
    state["ivf"].train(vectors[: 64 * cells])
    state["ivf"].add(vectors)
    state["shared"] = graph(vectors, np.arange(len(vectors)))
    state["own"] = {}
    return {"loaded": len(vectors), "cells": cells}


def searcher(way, tenant, knob):
    """Return a function from a query to numbers."""
    data = state["data"]
    rows = data[f"tenant{tenant}"]
    if way == "per tenant":
        if tenant not in state["own"]:
            state["own"][tenant] = graph(data["vectors"][rows], rows)
        index = state["own"][tenant]
        index.set_ef(knob)
        return lambda query: index.knn_query(query, K)[0][0]
    if way == "filter":
        allowed = set(rows.tolist())
        state["shared"].set_ef(knob)
        return lambda query: state["shared"].knn_query(query, K, filter=allowed.__contains__)[0][0]
    bits = np.zeros(len(data["vectors"]), bool)
    bits[rows] = True
    bitmap = np.packbits(bits, bitorder="little")
    chosen = faiss.IDSelectorBitmap(bitmap)
    given = faiss.SearchParametersIVF(sel=chosen, nprobe=knob)
    state["keep"] = (bitmap, chosen, given)
    return lambda query: state["ivf"].search(query, K, params=given)[1][0]


def found(way, tenant, knob, queries):
    """Search; a filter that admits too little makes hnswlib fail, which finds nothing."""
    search = searcher(way, tenant, knob)
    ids = []
    for query in queries:
        try:
            ids.append(search(query[None]))
        except RuntimeError:
            ids.append(np.full(K, -1))
    return np.array(ids)


def tune(way, tenant, goal):
    """Return the smallest knob that reaches a recall."""
    queries, truth = state["data"]["queries"], state["data"][f"truth{tenant}"]
    # hnswlib asks Python about every vertex it visits: a few queries tell as much.
    some = slice(0, 20) if way == "filter" else slice(None)
    recall = 0.0
    for knob in KNOBS[way]:
        ids = found(way, tenant, knob, queries[some])
        hits = (ids[:, :, None] == truth[some][:, None, :]).any(axis=1).sum(axis=1)
        recall = float((hits / K).mean())
        if recall >= goal:
            return {"knob": knob, "recall": recall}
    return {"knob": KNOBS[way][-1], "recall": recall}


def run(given):
    """Time every query by itself."""
    queries = state["data"]["queries"]
    if given["way"] == "filter":
        queries = queries[:20]
    search = searcher(given["way"], given["tenant"], given["knob"])
    for query in queries[:WARMING]:
        with contextlib.suppress(RuntimeError):
            search(query[None])
    begin = time.perf_counter()
    for query in queries:
        with contextlib.suppress(RuntimeError):
            search(query[None])
    return {"seconds": (time.perf_counter() - begin) / len(queries)}


answer({"name": f"hnswlib {metadata.version('hnswlib')}, faiss {faiss.__version__}"})
for line in sys.stdin:
    told = json.loads(line)
    if "load" in told:
        answer(load(told["load"]))
    elif "knob" in told:
        answer(run(told))
    else:
        answer(tune(told["way"], told["tenant"], told["goal"]))
