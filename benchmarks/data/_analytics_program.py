"""scikit-learn's learners of tables in memory, in its own interpreter.

{"sets": FILE} writes tables of the library with odd rows among usual ones to an .npz file: "NAME/x"
and "NAME/odd". {"kmeans": FILE, "count": k, "seeds": n} clusters "x" of an .npz file and is
answered by {"inertias", "iterations"}; {"birch": FILE, "count": k, "limit": l} likewise by
{"inertia", "entries"}. {"forest": FILE, "seeds": n} is answered by the mean ROC-AUC
of isolation forests by set. {"learner": NAME, "rows": FILE} fits "x" and "y" of rows that are not
"held" and is answered by {"auc", "seconds"}. {"perceptron": FILE, "seeds": n} fits
perceptrons to "numbers" and "texts" and is answered by the mean {"auc"}.
"""

import json
import os
import sys
import time

import numpy as np

channel = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def answer(value):
    """Write one line."""
    channel.write(json.dumps(value) + "\n")
    channel.flush()


def mixed(usual, odd, count, seed):
    """Return usual rows with some odd ones, and which are odd."""
    rng = np.random.default_rng(seed)
    drawn = odd[rng.choice(len(odd), min(count, len(odd)), replace=False)]
    flags = np.arange(len(usual) + len(drawn)) >= len(usual)
    return np.concatenate([usual, drawn]), flags


def sets(path):
    """Write tables of the library."""
    from sklearn import datasets  # pyright: ignore[reportMissingImports]

    found = {}
    x, y = datasets.load_breast_cancer(return_X_y=True)
    found["breast cancer"] = mixed(x[y == 1], x[y == 0], 20, 0)
    x, y = datasets.load_wine(return_X_y=True)
    found["wine"] = mixed(x[y != 0], x[y == 0], 20, 1)
    x, y = datasets.load_digits(return_X_y=True)
    found["digits 4 among 0"] = mixed(x[y == 0], x[y == 4], 10, 2)
    found["digits 1 among 7"] = mixed(x[y == 7], x[y == 1], 10, 3)
    x, _ = datasets.load_diabetes(return_X_y=True)
    # Every column is that of another row: each is usual, together they are not.
    rng = np.random.default_rng(4)
    shuffled = np.column_stack([rng.permutation(column) for column in x.T])
    found["diabetes shuffled"] = mixed(x, shuffled * 1.5, 20, 4)
    arrays = {f"{name}/x": x for name, (x, _) in found.items()}
    np.savez(path, **arrays, **{f"{name}/odd": odd for name, (_, odd) in found.items()})
    return {"sets": list(found)}


def kmeans(path, count, seeds):
    """Cluster rows."""
    from sklearn.cluster import KMeans  # pyright: ignore[reportMissingImports]

    x = np.load(path)["x"]
    found = [KMeans(count, n_init=1, random_state=seed).fit(x) for seed in range(seeds)]
    return {
        "inertias": [float(item.inertia_) for item in found],
        "iterations": [int(item.n_iter_) for item in found],
    }


def birch(path, count, limit):
    """Cluster rows by a tree of cluster features."""
    from sklearn.cluster import Birch  # pyright: ignore[reportMissingImports]

    x = np.load(path)["x"].astype(np.float64)
    model = Birch(threshold=limit**0.5, n_clusters=count)
    labels = model.fit_predict(x)
    means = np.stack([x[labels == own].mean(axis=0) for own in np.unique(labels)])
    apart = (x - means[np.searchsorted(np.unique(labels), labels)]) ** 2
    return {"inertia": float(apart.sum()), "entries": len(model.subcluster_labels_)}


def area(odd, scores):
    """Return the ROC-AUC."""
    from sklearn.metrics import roc_auc_score  # pyright: ignore[reportMissingImports]

    return float(roc_auc_score(odd, scores))


def forest(path, seeds):
    """Return mean areas of isolation forests."""
    from sklearn.ensemble import IsolationForest  # pyright: ignore[reportMissingImports]

    given = np.load(path)
    found = {}
    for name in sorted({key.split("/")[0] for key in given.files}):
        x, odd = given[f"{name}/x"], given[f"{name}/odd"]
        areas = []
        for seed in range(seeds):
            model = IsolationForest(
                n_estimators=100, max_samples=min(256, len(x)), random_state=seed
            )
            areas.append(area(odd, -model.fit(x).score_samples(x)))
        found[name] = float(np.mean(areas))
    return found


def learn(name, path):
    """Fit a classifier and measure it on the rows kept aside."""
    given = np.load(path)
    x, y, held = given["x"], given["y"], given["held"]
    x = np.where(np.isnan(x), np.nanmean(x[~held], axis=0), x)
    if name == "forest":
        from sklearn.ensemble import RandomForestClassifier  # pyright: ignore

        model = RandomForestClassifier(100, min_samples_leaf=5, n_jobs=2, random_state=0)
    elif name == "linear":
        from sklearn.linear_model import LogisticRegression  # pyright: ignore
        from sklearn.pipeline import make_pipeline  # pyright: ignore
        from sklearn.preprocessing import StandardScaler  # pyright: ignore

        model = make_pipeline(StandardScaler(), LogisticRegression(C=1e4, max_iter=500))
    elif name == "neighbours":
        from sklearn.neighbors import KNeighborsClassifier  # pyright: ignore
        from sklearn.pipeline import make_pipeline  # pyright: ignore
        from sklearn.preprocessing import StandardScaler  # pyright: ignore

        model = make_pipeline(StandardScaler(), KNeighborsClassifier(20, algorithm="brute"))
    else:
        from sklearn.naive_bayes import GaussianNB  # pyright: ignore[reportMissingImports]

        model = GaussianNB()
    begin = time.perf_counter()
    model.fit(x[~held], y[~held])
    seconds = time.perf_counter() - begin
    return {"auc": area(y[held], model.predict_proba(x[held])[:, 1]), "seconds": seconds}


def perceptron(path, seeds):
    """Fit a perceptron to numbers with gaps and texts, and measure it on the rows kept aside."""
    import warnings

    from sklearn.compose import ColumnTransformer  # pyright: ignore[reportMissingImports]
    from sklearn.impute import SimpleImputer  # pyright: ignore[reportMissingImports]
    from sklearn.neural_network import MLPClassifier  # pyright: ignore[reportMissingImports]
    from sklearn.pipeline import make_pipeline  # pyright: ignore[reportMissingImports]
    from sklearn.preprocessing import OneHotEncoder, StandardScaler  # pyright: ignore

    # A perceptron that has not settled after its 200 passes says so in a warning.
    warnings.simplefilter("ignore")
    given = np.load(path)
    numbers, texts, y, held = (given[name] for name in ("numbers", "texts", "y", "held"))
    width = numbers.shape[1]
    x = np.concatenate([numbers.astype(object), texts.astype(object)], axis=1)
    filled = make_pipeline(SimpleImputer(add_indicator=True), StandardScaler())
    flags = OneHotEncoder(max_categories=33, handle_unknown="infrequent_if_exist")
    parts = [("numbers", filled, list(range(width)))]
    parts.append(("texts", flags, list(range(width, x.shape[1]))))
    areas = []
    for seed in range(seeds):
        model = make_pipeline(ColumnTransformer(parts), MLPClassifier(random_state=seed))
        model.fit(x[~held], y[~held])
        areas.append(area(y[held], model.predict_proba(x[held])[:, 1]))
    return {"auc": float(np.mean(areas))}


answer({"name": "learners in memory"})
for line in sys.stdin:
    told = json.loads(line)
    if "sets" in told:
        answer(sets(told["sets"]))
    elif "kmeans" in told:
        answer(kmeans(told["kmeans"], told["count"], told["seeds"]))
    elif "perceptron" in told:
        answer(perceptron(told["perceptron"], told["seeds"]))
    elif "birch" in told:
        answer(birch(told["birch"], told["count"], told["limit"]))
    elif "forest" in told:
        answer(forest(told["forest"], told["seeds"]))
    else:
        answer(learn(told["learner"], told["rows"]))
