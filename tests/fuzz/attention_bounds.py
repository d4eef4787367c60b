"""Linear attention in float64, and how far float32 may be from it.

The quadratic form, with its gradient by hand. Every sum here is a sum of
monomials in the decays `w`, the features `q` and `k`, the values `v` and the
gradients of the sums. So there is one rule for what float32 may lose: the same
sum is taken again of magnitudes, each plus its own error, times `1 + γ`, and
the sum of the magnitudes alone is subtracted from it. What is left is the sum
of all first and higher order errors:

    |x' - x| <= M(|w| + δw, |q| + δq, ...) (1 + γ) - M(|w|, |q|, ...)

`γ = γ(n)` bounds what `n` roundings to float32 do to a product of 1: `n u`,
or `7 sqrt(n) u` where that is less, which holds for independent roundings
with a probability of failure below `2 n exp(-7²/2) = n 5e-11` (Higham and
Mary, 2019). `n` is the depth of the sums: width, steps and a few more.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from attention_problem import LOG_OPEN, LOG_SHUT, Problem
from bound_sums import gradients, sums
from bounded import TINY, Bounded, U, inflated

Array = Any


def bounds(
    problem: Problem,
    cotangents: dict[str, Array] | None = None,
    rows: Array | None = None,
) -> tuple[dict[str, Bounded], dict[str, Bounded]]:
    """Returns outputs and state, and gradients, each with its bound.

    Args:
        problem: the inputs.
        cotangents: dict of the gradients by the output `(b, t, h, e)` and by
            `s`, `z` and `weight` of the last state. `None` asks for none.
        rows: int array of the steps whose outputs are asked for; all unless
            given.

    Returns:
        Dicts of `output`, `s`, `z` and `weight`, and of gradients.
    """
    rows = np.arange(problem.q.shape[1]) if rows is None else rows
    x = _inputs(problem, rows)
    value, plain, high = (
        {name: convert(entry) for name, entry in x.items()}
        for convert in (lambda y: y.value, lambda y: np.abs(y.value), inflated)
    )
    plain["lost"], plain["lost0"] = 0 * high["lost"], 0 * high["lost0"]
    plain["lost_last"] = 0.0
    value.update({name: plain[name] for name in plain if "lost" in name})

    def bounded(function: Any, *options: Any) -> dict[str, Bounded]:
        minus = (-1.0,) if options else ()
        plus = (1.0,) if options else ()
        exact = function(value, *options, *minus)
        small = function(plain, *options, *plus)
        large = function(high, *options, *plus)
        return {
            name: Bounded(
                exact[name], large[name] * (1 + problem.gamma) - small[name]
            )
            for name in exact
        }

    total = bounded(sums)
    outputs, floor = _outputs(problem, total, rows)
    if cotangents is None:
        return outputs, {}
    for name, entry in _by_sums(problem, total, outputs, floor, cotangents):
        value[name], plain[name] = entry.value, np.abs(entry.value)
        high[name] = inflated(entry)
    grads = bounded(gradients, problem.causal)
    # A gradient by a denominator can be too large for float32: `o / F`.
    size = np.abs(cotangents["output"]) * (1 + np.abs(outputs["output"].value))
    size = np.moveaxis(size.sum(-1), 1, 2) / floor.high
    lost = size.max((-1, -2), initial=0) > 1e36
    if problem.gated:
        logit = grads["gate_logits"]
        keep = np.moveaxis(plain["keep"], 1, 2)
        # They are differences of sums of all that is read and all that is
        # written from a step on, where the own steps cancel.
        shared = gradients(high, problem.causal, 1.0)["everything"][:, None]
        logit.error = logit.error + problem.gamma * keep * shared
        # A gate that is wholly shut, or wholly open, gets no gradient by it.
        by_gate = np.moveaxis(inflated(grads["by_gate"]), 1, 2)
        shut = np.moveaxis(problem.log_keep <= LOG_SHUT + 1e-3, 1, 2)
        logit.error = logit.error + np.where(shut, keep * by_gate, 0)
        wholly = np.moveaxis(problem.log_enter <= LOG_OPEN + 1e-3, 1, 2)
        entered = inflated(grads["by_enter"])
        entered = entered + keep * by_gate
        logit.error = logit.error + np.where(wholly, entered, 0)
    for entry in grads.values():
        entry.error[lost] = np.inf
    return outputs, grads


def _inputs(problem: Problem, rows: Array) -> dict[str, Bounded]:
    w, w0 = problem.weights(rows)
    last_row = np.array([problem.k.shape[1] - 1])
    if problem.k.shape[1]:
        w_last, w0_last = problem.weights(last_row)
        w_last = Bounded(w_last.value[:, :, 0], w_last.error[:, :, 0])
        w0_last = Bounded(w0_last.value[..., 0], w0_last.error[..., 0])
    else:
        w_last = Bounded(problem.weight, 0 * problem.weight)
        w0_last = Bounded(np.ones(problem.weight.shape[:2]), 0.0)
    q, k = problem.q[:, rows], problem.k
    q_error = problem.q_error
    if np.ndim(q_error):
        q_error = q_error[:, rows]
    x = {
        "q": Bounded(q, q_error),
        "k": Bounded(k, problem.k_error),
        "v": Bounded(problem.v, 0.0),
        "weight": Bounded(problem.weight, problem.weight_error),
        "s0": Bounded(problem.state["s"], 0.0),
        "z0": Bounded(problem.state["z"], 0.0),
        "c0": Bounded(problem.state["weight"], 0.0),
        "w": w,
        "w0": w0,
        "w_last": w_last,
        "w0_last": w0_last,
    }
    if problem.gated:
        enter = np.where(problem.counts, np.exp(problem.log_keep), 0)
        keep = np.where(problem.counts, np.exp(problem.log_enter), 0)
        for name, entry in (("keep", keep), ("enter", enter)):
            # Not of the gate, of whose share it is the derivative.
            x[name] = Bounded(entry, 8 * U * entry + TINY)
    # Each entry of a key, a query or a state may be flushed to zero.
    q_sum = np.moveaxis(inflated(x["q"]).sum(-1), 1, 2)
    k_sum = np.moveaxis(inflated(x["k"]).sum(-1), 1, 2)
    lost = TINY * (1 + q_sum[..., None] + k_sum[..., None, :])
    lost = lost * (1 + inflated(w) * problem.weight[..., None, :])
    state = np.abs(problem.state["s"]).sum((-1, -2))
    state = state + np.abs(problem.state["z"]).sum(-1)
    lost0 = TINY * (1 + q_sum + state[..., None])
    largest = np.abs(problem.v).max(initial=0) + np.abs(k).max(initial=0)
    return {
        **x,
        "lost": Bounded(0 * lost, lost),
        "lost0": Bounded(0 * lost0, lost0),
        "lost_last": Bounded(0.0, TINY * (1 + k.shape[1]) * (1 + largest)),
    }


@dataclass
class Floor:
    """Denominators with their floor, and which of both they are."""

    value: Array
    high: Array  # the most it may be
    inverse: Array  # the largest that its inverse may be, or further off
    free: Array  # the denominator is surely above the floor
    bound: Array  # it is surely below
    nothing: Array  # no key has been seen


def _outputs(
    problem: Problem, total: dict[str, Bounded], rows: Array
) -> tuple[dict[str, Bounded], Floor]:
    numerator, denominator = total["numerator"], total["denominator"]
    low_d = denominator.value - denominator.error
    high_d = denominator.value + denominator.error
    weight = problem.epsilon * total["weight"].value
    error = problem.epsilon * total["weight"].error + 2 * U * weight + TINY
    low_f, high_f = weight - error, weight + error
    nothing = ~problem.sees(rows)
    value = np.maximum(denominator.value, weight)
    value = np.where(value > 0, value, 1)
    low = np.where(nothing, 1, np.maximum(low_d, low_f))
    high = np.maximum(high_d, high_f)
    # Where it may be 0 the quotient may be anything finite.
    low = np.where(low > 0, low, np.minimum(1e-60, value))
    off = np.where(nothing, 0, np.maximum(high - value, value - low))
    output = numerator.value / value[..., None]
    error = numerator.error + np.abs(output) * off[..., None]
    error = np.where(nothing[..., None], 0, error / low[..., None])
    error = error + 2 * U * np.abs(output)
    inverse = (1 + off / low) / value
    floor = Floor(
        value,
        np.maximum(high, value),
        inverse,
        low_d > high_f,
        high_d < low_f,
        nothing,
    )
    outputs = {
        "output": Bounded(np.moveaxis(output, 1, 2), np.moveaxis(error, 1, 2)),
        "s": total["s"],
        "z": total["z"],
        "weight": total["c"],
    }
    return outputs, floor


def _by_sums(
    problem: Problem,
    total: dict[str, Bounded],
    outputs: dict[str, Bounded],
    floor: Floor,
    cotangents: dict[str, Array],
) -> list[tuple[str, Bounded]]:
    """Returns the gradients by what `sums` returns."""
    given = np.moveaxis(cotangents["output"], 1, 2)
    by_numerator = given / floor.value[..., None]
    high = np.abs(given) * floor.inverse[..., None] * (1 + 3 * U)
    dn = Bounded(by_numerator, high - np.abs(by_numerator) + TINY)
    output = np.moveaxis(inflated(outputs["output"]), 1, 2)
    size = (np.abs(given) * output).sum(-1) * floor.inverse
    size = size * (1 + problem.gamma)
    exact = np.moveaxis(outputs["output"].value, 1, 2)
    by_floor = -(given * exact).sum(-1) / floor.value
    plain = (np.abs(given * exact)).sum(-1) / floor.value
    error = np.where(floor.nothing, 0, size - plain)
    size = np.where(floor.nothing, 0, size)
    by_floor = np.where(floor.nothing, 0, by_floor)
    is_free = (
        total["denominator"].value > problem.epsilon * total["weight"].value
    )
    unsure = ~(floor.free | floor.bound)
    error = np.where(unsure, 2 * size, error) + TINY
    dd = np.where(is_free, by_floor, 0)
    dc = problem.epsilon * np.where(is_free, 0, by_floor)
    dc_error = problem.epsilon * error
    zero = {name: 0 * outputs[name].value for name in ("s", "z", "weight")}
    last = {name: cotangents.get(name, zero[name]) for name in zero}
    return [
        ("dn", dn),
        ("dd", Bounded(dd, np.where(floor.bound, 0, error))),
        ("dc", Bounded(dc, np.where(floor.free, 0, dc_error))),
        ("ds", Bounded(last["s"], 0.0)),
        ("dz", Bounded(last["z"], 0.0)),
        ("dw", Bounded(last["weight"], 0.0)),
    ]
