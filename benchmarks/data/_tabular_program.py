"""Learners of tables in memory, fitted in their own interpreter.

{"load": FILE} maps an .npz file of rows "x" [N, F], classes "y" and rows "held" that are kept
aside. {"learner": NAME, "rounds": n, "threads": t} fits and is answered by {"seconds", "auc"}; the
seconds count from rows in memory.
"""

import json
import os
import sys
import tempfile
import time

import numpy as np

channel = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
state = {}


def answer(value):
    """Write one line."""
    channel.write(json.dumps(value) + "\n")
    channel.flush()


def load(path):
    """Read the rows."""
    data = np.load(path)
    x, y, held = (data[name] for name in ("x", "y", "held"))
    state["parts"] = x[~held], y[~held], x[held], y[held]
    return {"rows": len(y)}


def from_files(rounds, threads):
    """Return XGBoost's model of rows that come in parts and are kept in files."""
    import xgboost  # pyright: ignore[reportMissingImports]

    x, y = state["parts"][:2]
    cuts = np.array_split(np.arange(len(y)), 8)

    class Parts(xgboost.DataIter):
        """Hands the rows out."""

        def __init__(self, prefix):
            self.at = 0
            super().__init__(cache_prefix=prefix)

        def next(self, input_data):
            """Hand out the next part."""
            if self.at == len(cuts):
                return False
            own = cuts[self.at]
            input_data(data=x[own], label=y[own])
            self.at += 1
            return True

        def reset(self):
            """Begin anew."""
            self.at = 0

    settings = {
        "objective": "binary:logistic",
        "tree_method": "hist",
        "grow_policy": "lossguide",
        "max_leaves": 31,
        "max_depth": 0,
        "learning_rate": 0.1,
        "nthread": threads,
    }
    with tempfile.TemporaryDirectory() as folder:
        rows = xgboost.ExtMemQuantileDMatrix(Parts(f"{folder}/rows"), max_bin=256)
        return xgboost.train(settings, rows, num_boost_round=rounds)


def fitted(name, rounds, threads):
    """Return the shares of class 1 of the rows kept aside."""
    x, y, held, _ = state["parts"]
    if name == "scikit-learn":
        from sklearn.ensemble import HistGradientBoostingClassifier  # pyright: ignore

        model = HistGradientBoostingClassifier(
            max_iter=rounds, early_stopping=False, l2_regularization=1.0
        )
        return model.fit(x, y), held
    if name == "lightgbm":
        from lightgbm import LGBMClassifier  # pyright: ignore[reportMissingImports]

        model = LGBMClassifier(n_estimators=rounds, n_jobs=threads, reg_lambda=1.0, verbose=-1)
        return model.fit(x, y), held
    from xgboost import XGBClassifier  # pyright: ignore[reportMissingImports]

    model = XGBClassifier(
        n_estimators=rounds,
        n_jobs=threads,
        tree_method="hist",
        grow_policy="lossguide",
        max_leaves=31,
        max_depth=0,
        learning_rate=0.1,
    )
    return model.fit(x, y), held


def run(given):
    """Fit once."""
    begin = time.perf_counter()
    if given["learner"] == "xgboost from files":
        import xgboost  # pyright: ignore[reportMissingImports]

        booster = from_files(given["rounds"], given["threads"])
        seconds = time.perf_counter() - begin
        shares = booster.predict(xgboost.DMatrix(state["parts"][2]))
    else:
        model, held = fitted(given["learner"], given["rounds"], given["threads"])
        seconds = time.perf_counter() - begin
        shares = model.predict_proba(held)[:, 1]
    order = np.argsort(shares, kind="stable")
    ranks = np.empty(len(order))
    ranks[order] = np.arange(1, len(order) + 1)
    ones = state["parts"][3] > 0
    above = ranks[ones].sum() - ones.sum() * (ones.sum() + 1) / 2
    auc = above / (ones.sum() * (~ones).sum())
    return {"seconds": seconds, "auc": float(auc)}


answer({"name": "learners in memory"})
for line in sys.stdin:
    told = json.loads(line)
    answer(load(told["load"]) if "load" in told else run(told))
