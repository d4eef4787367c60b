"""Training that is killed, started again, and ends as if it never had been."""

import json
import pathlib

import numpy as np
from programs import run_python

PROGRAM = pathlib.Path(__file__).with_name("interrupted_training.py")


def test_a_killed_training_ends_with_the_weights_of_an_unbroken_one(tmp_path):
    draw = np.random.default_rng(7)
    # Writing: all but the end is on the disk. Renaming: all of it is.
    moments = ["batch", "batch", "validation", "writing", "renaming"]
    killed = [
        (str(moment), epoch, int(draw.integers(4)))
        for epoch, moment in enumerate(draw.permutation(moments))
    ]
    printed = run_python(
        PROGRAM,
        tmp_path,
        json.dumps({"unbroken": [], "killed": killed}),
        # What one process compiled the next ones find.
        JAX_COMPILATION_CACHE_DIR=str(tmp_path / "compiled"),
        JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
        JAX_DISABLE_MOST_OPTIMIZATIONS="1",
    ).stdout
    assert printed.split() == ["0", "-9", "-9", "-9", "-9", "-9", "0"]
    ends = []
    for name in ("unbroken", "killed"):
        with np.load(tmp_path / name / "end.npz") as file:
            ends.append(dict(file))
        assert not (tmp_path / name / "backup").exists()
    np.testing.assert_equal(*ends, strict=True)
    seen, best_epoch, stopped_epoch = json.loads(str(ends[0]["seen"]))
    assert (best_epoch, stopped_epoch) == (1, 5)
    assert seen["epoch"] == list(range(6))
