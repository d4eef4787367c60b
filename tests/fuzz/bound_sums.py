"""The sums of linear attention and their gradients, as sums of monomials.

Each function is called three times: with values, with their magnitudes, and
with magnitudes and errors. See `attention_bounds`.
"""

from typing import Any

import numpy as np

Array = Any
Arrays = dict[str, Array]


def sums(x: Arrays) -> Arrays:
    """Returns numerators, denominators, weights and the last state.

    Args:
        x: dict of `q`, `k`, `v`, `weight` `(b, h, s)`, the state `s0`, `z0`,
            `c0`, the decays `w` `(b, h, t, s)` and `w0` `(b, h, t)` that
            queries see, `w_last` `(b, h, s)` and `w0_last` `(b, h)` of the
            last state, and what may be lost to underflow: `lost`
            `(b, h, t, s)` and `lost0` `(b, h, t)`.
    """
    products = np.einsum("bthm,bshm->bhts", x["q"], x["k"])
    w = x["w"] * x["weight"][..., None, :]
    scores = products * w
    lost = x["lost"].sum(-1) + x["lost0"]
    first = np.einsum("bthm,bhme->bhte", x["q"], x["s0"])
    last = x["w_last"] * x["weight"]
    k_last = np.moveaxis(last, 1, 2)[..., None] * x["k"]
    w0 = x["w0_last"]
    return {
        "numerator": np.einsum("bhts,bshe->bhte", scores, x["v"])
        + np.einsum("bhts,bshe->bhte", x["lost"], x["v"])
        + lost[..., None]
        + x["w0"][..., None] * first,
        "denominator": scores.sum(-1)
        + lost
        + x["w0"] * np.einsum("bthm,bhm->bht", x["q"], x["z0"]),
        "weight": w.sum(-1) + x["w0"] * x["c0"][..., None],
        "s": np.einsum("bshm,bshe->bhme", k_last, x["v"])
        + x["lost_last"]
        + w0[..., None, None] * x["s0"],
        "z": k_last.sum(1) + x["lost_last"] + w0[..., None] * x["z0"],
        "c": last.sum(-1) + w0 * x["c0"],
    }


def gradients(x: Arrays, causal: bool, minus: float) -> Arrays:
    """Returns the gradients by all inputs.

    Args:
        x: dict as that of `sums`, with the gradients by the sums: `dn`, `dd`,
            `dc` of those that queries see, `ds`, `dz` and `dw` of the last
            state, and the derivatives `keep` and `enter` `(b, h, s)` of the
            logarithms of gates and of what enters.
        causal: bool.
        minus: -1, or 1 to sum magnitudes.
    """
    w = x["w"] * x["weight"][..., None, :]
    products = np.einsum("bthm,bshm->bhts", x["q"], x["k"])
    by_score = np.einsum("bhte,bshe->bhts", x["dn"], x["v"])
    by_score = by_score + x["dd"][..., None]
    last = x["w_last"] * x["weight"]
    k_last = np.moveaxis(last, 1, 2)[..., None] * x["k"]
    by_k_last = np.einsum("bhme,bshe->bshm", x["ds"], x["v"])
    by_k_last = by_k_last + x["dz"][:, None]
    first = np.einsum("bhte,bhme->bthm", x["dn"], x["s0"])
    first = first + np.einsum("bht,bhm->bthm", x["dd"], x["z0"])
    w0 = np.moveaxis(x["w0"], 1, 2)[..., None]
    seen = w * by_score
    q0 = w0 * x["q"]
    size = np.abs(x["dn"]).sum(-1) + np.abs(x["dd"])
    lost = x["lost"] * (1 + np.abs(by_score) + size[..., None])
    # By the weights, with which decays and what enters are multiplied.
    by_weight = products * by_score + x["dc"][..., None]
    by_last = np.einsum("bshm,bshm->bhs", x["k"], by_k_last)
    by_last = by_last + x["dw"][..., None]
    by_w0 = np.moveaxis((x["q"] * first).sum(-1), 1, 2)
    by_w0 = by_w0 + x["dc"] * x["c0"][..., None]
    by_key_weight = (x["w"] * by_weight + lost).sum(-2) + x["w_last"] * by_last
    by_gates = {}
    if "keep" in x:
        pairs = w * by_weight + lost
        by_gate, everything = _by_gates(x, causal, pairs, by_last, by_w0)
        by_logit = x["keep"] * by_gate
        entered = x["enter"] * x["weight"] * by_key_weight
        by_gates = {
            "gate_logits": np.moveaxis(by_logit + minus * entered, 1, 2),
            "by_gate": by_gate,
            "by_enter": np.moveaxis(entered, 1, 2),
            "everything": everything,
        }
    return {
        "query_features": np.einsum("bhts,bshm->bthm", seen, x["k"])
        + np.moveaxis(lost.sum(-1), 1, 2)[..., None]
        + w0 * first,
        "key_features": np.einsum("bhts,bthm->bshm", seen, x["q"])
        + np.moveaxis(lost.sum(-2), 1, 2)[..., None]
        + np.moveaxis(last, 1, 2)[..., None] * by_k_last,
        "value": np.einsum("bhts,bhte->bshe", products * w, x["dn"])
        + np.einsum("bhts,bhte->bshe", x["lost"], np.abs(x["dn"]))
        + np.einsum("bhme,bshm->bshe", x["ds"], k_last),
        "key_weight": np.moveaxis(by_key_weight, 1, 2),
        **by_gates,
        "s0": np.einsum("bthm,bhte->bhme", q0, x["dn"])
        + x["w0_last"][..., None, None] * x["ds"],
        "z0": np.einsum("bthm,bht->bhm", q0, x["dd"])
        + x["w0_last"][..., None] * x["dz"],
        "c0": (x["w0"] * x["dc"]).sum(-1) + x["w0_last"] * x["dw"],
    }


def _by_gates(
    x: Arrays, causal: bool, pairs: Array, by_last: Array, by_w0: Array
) -> tuple[Array, Array]:
    """Returns the gradients by the logarithms of gates `(b, h, s)`.

    A gate is in the weights of those pairs on whose way it stands. With them
    comes the sum of all magnitudes that the gates of a row share `(b, h)`.
    """
    last = x["w_last"] * x["weight"] * by_last
    first = x["w0"] * by_w0
    first_last = x["w0_last"] * (
        (x["s0"] * x["ds"]).sum((-1, -2))
        + (x["z0"] * x["dz"]).sum(-1)
        + x["c0"] * x["dw"]
    )
    step = np.arange(pairs.shape[-2])
    until_end = np.flip(np.cumsum(np.flip(pairs, -2), -2), -2)
    by_gate = np.where(step[:, None] > step, until_end, 0).sum(-1)
    if not causal:
        from_start = np.cumsum(pairs, -2)
        by_gate += np.where(step[:, None] < step, from_start, 0).sum(-1)
    by_gate += np.cumsum(last, -1) - last
    by_gate += np.flip(np.cumsum(np.flip(first, -1), -1), -1)
    everything = np.abs(pairs).sum((-1, -2)) + np.abs(last).sum(-1)
    everything += np.abs(first).sum(-1) + np.abs(first_last)
    return by_gate + first_last[..., None], everything
