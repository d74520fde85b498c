"""Verbs of `steelyard data table` that load late: where each stands, and its help.

The list of commands shows no help of what is not loaded yet, so that it stands here.
"""

__all__ = ["LATE_VERBS"]

LATE_VERBS = (
    (
        "steelyard.cli.data.drift:drift",
        "drift",
        "Compare two tables by their sketches: no data are read.\n\n"
        "Example: steelyard data table drift march.sketch april.sketch\n\n"
        "Sketches are written by `steelyard data table profile FILES --sketch FILE`. Files, "
        "patterns and folders may stand for either of them; they are profiled first. A sketch "
        "whose files have changed since is refused.",
    ),
    (
        "steelyard.cli.data.learning:fit",
        "fit",
        "Fit a learner that predicts a column; run it again to continue after a kill.\n\n"
        "The table is read twice and may be larger than memory: a byte or a float per value "
        "is kept on disk beside the model meanwhile.\n\n"
        "Example: steelyard data table fit 'sales/*.csv' --target returned --out "
        "returned.model",
    ),
    (
        "steelyard.cli.data.learning:predict",
        "predict",
        "Predict the column of a model for each row.\n\n"
        "Example: steelyard data table predict returned.model new.csv --out predicted.parquet",
    ),
    (
        "steelyard.cli.data.comparing:compare",
        "compare",
        "Fit a family of learners within one time budget, and say which predicts best.\n\n"
        "Each round doubles the rows. Half of the rows kept aside rank the learners, the "
        "other half measure them. The loss over rows says what more rows would bring.\n\n"
        "Example: steelyard data table compare 'sales/*.csv' --target returned --leave-out id "
        "--time 60s",
    ),
    (
        "steelyard.cli.data.clusters:cluster",
        "cluster",
        "Put rows in clusters, and say what makes each of them.\n\n"
        "The table is read twice and may be larger than memory. Columns count in standard "
        "deviations, frequent values of text as yes and no.\n\n"
        "Example: steelyard data table cluster 'sales/*.csv' --clusters 6 --leave-out id "
        "--out of.parquet",
    ),
    (
        "steelyard.cli.data.clusters:reduce",
        "reduce",
        "Write rows in fewer columns: principal components, or a random projection.\n\n"
        "Columns count in standard deviations, frequent values of text as yes and no. "
        "Components come from covariances that are added up in one pass, of more than 5,000 "
        "features from four passes with random directions.\n\n"
        "Example: steelyard data table reduce 'sales/*.csv' --to pca:8 --leave-out id --out "
        "small.parquet",
    ),
    (
        "steelyard.cli.data.odd_rows:detect",
        "detect",
        "Find the rows that are unlike the others, and say which columns make them so.\n\n"
        "The table is read twice and may be larger than memory. Columns count in standard "
        "deviations, frequent values of text as yes and no.\n\n"
        "Example: steelyard data table detect 'sales/*.csv' --leave-out id --out odd.parquet",
    ),
    (
        "steelyard.cli.data.preparing:transform",
        "transform",
        "Fit the steps of a recipe to a table and write what they make of it.\n\n"
        "With a [split] in the recipe, steps learn from its first share alone, and each share "
        "is written to a file of its own. Rows that a step sets aside stand beside it in "
        "NAME.quarantine.csv.\n\n"
        "Example: steelyard data table transform 'sales/*.csv' --recipe recipes/pipeline.toml "
        "--out features.parquet",
    ),
    (
        "steelyard.cli.data.preparing:split",
        "split",
        "Write the rows of a table to files by share; each row decides itself where it goes.\n\n"
        "The hash of a row's key says where it goes, so that files, their order and other "
        "rows do not matter. Rows of one key stay together.\n\n"
        "Example: steelyard data table split 'sales/*.csv' --by customer --out sales.parquet",
    ),
    (
        "steelyard.cli.data.matching:match",
        "match",
        "Find the columns of two tables that say the same, and those by which they can be "
        "joined.\n\n"
        "With --rows also the rows that are one thing: candidates by their letters, with a "
        "probability.\n\n"
        "Example: steelyard data table match customers.csv 'orders/*.csv'",
    ),
)
"""Where a verb is imported from, its name, and what it does with an example."""
