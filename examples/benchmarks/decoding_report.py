"""Tables and a figure of what `decoding.py` has measured."""

import pathlib
import statistics
from typing import Any

Cell = dict[str, Any]

# What the speed and the memory of the others are compared with.
BASELINES = ("keras_hub", "softmax")
LABELS = {
    "rfa": "RFA, gaussian",
    "rfa_arccos": "RFA, arc-cosine",
    "rfa_gated": "RFA, gaussian, gated",
    "softmax": "softmax, cache (b, h, t, d)",
    "keras_hub": "softmax, keras-hub's cache",
    "no_cache": "softmax, no cache",
}
# The time per token at the longest length is compared with that at this one.
SHORT = 128


def seconds_per_step(cell: Cell) -> float:
    """Returns the median of the runs."""
    return statistics.median(cell["seconds_per_step"])


def tokens_a_second(cell: Cell) -> float:
    """Returns how many tokens all rows together get."""
    rows: int = cell["batch"]
    return rows / seconds_per_step(cell)


def memory(cell: Cell) -> int:
    """Returns the bytes of all that attention keeps between steps."""
    return sum(cell["bytes"].values())


def print_tables(cells: list[Cell]) -> None:
    """Prints what was measured of one model and batch size."""
    kind, batch = cells[0]["model"], cells[0]["batch"]
    attentions = list(dict.fromkeys(cell["attention"] for cell in cells))
    rows: dict[int, dict[str, Cell]] = {}
    for cell in cells:
        rows.setdefault(cell["length"], {})[cell["attention"]] = cell
    print(f"\n{kind}, batch {batch}: tokens a second\n")
    _print_head(["tokens", *attentions])
    for length, row in rows.items():
        _print_row(
            length,
            [
                f"{tokens_a_second(row[x]):,.1f}" if x in row else "-"
                for x in attentions
            ],
        )
    linear = [x for x in attentions if x.startswith("rfa")]
    present = [x for x in BASELINES if x in attentions]
    if linear and present:
        print(f"\n{kind}, batch {batch}: how many times as fast\n")
        _print_head(
            ["tokens", *(f"{x} / {y}" for x in linear for y in present)]
        )
        for length, row in rows.items():
            _print_row(
                length,
                [
                    f"{seconds_per_step(row[y]) / seconds_per_step(row[x]):.2f}"
                    for x in linear
                    for y in present
                ],
            )
    kept = [x for x in attentions if x != "no_cache"]
    print(f"\n{kind}, batch {batch}: MB that attention keeps\n")
    _print_head(["tokens", *kept, *(f"{x} / softmax" for x in linear)])
    for length, row in rows.items():
        sizes = [f"{memory(row[x]) / 1e6:,.1f}" for x in kept]
        if "softmax" in row:
            sizes += [
                f"{memory(row[x]) / memory(row['softmax']):.1%}" for x in linear
            ]
        else:
            sizes += ["-"] * len(linear)
        _print_row(length, sizes)
    longest = rows[max(rows)]
    print("\ntensors of a state at the longest length, bytes:")
    for name, cell in longest.items():
        sizes = [f"{key} {size:,}" for key, size in cell["bytes"].items()]
        print(f"  {name}: {', '.join(sizes) or 'none'}")
    if SHORT in rows and max(rows) > SHORT:
        print(f"\ntime per token at {max(rows):,} over that at {SHORT}:")
        for name, cell in longest.items():
            ratio = seconds_per_step(cell) / seconds_per_step(rows[SHORT][name])
            print(f"  {name}: {ratio:.2f}")


def _print_head(columns: list[str]) -> None:
    print("| " + " | ".join(columns) + " |")
    print("| ---: " * len(columns) + "|")


def _print_row(length: int, values: list[str]) -> None:
    print(f"| {length:,} | " + " | ".join(values) + " |", flush=True)


def draw(cells: list[Cell], title: str, path: pathlib.Path) -> None:
    """Draws speed and memory against the length, a line an attention."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt
    from matplotlib import ticker

    figure, panels = plt.subplots(1, 2, figsize=(11, 5), layout="constrained")
    kind, batch = cells[0]["model"], cells[0]["batch"]
    names = dict.fromkeys(cell["attention"] for cell in cells)
    for name, marker in zip(names, "os^vDx", strict=False):
        line = [cell for cell in cells if cell["attention"] == name]
        style: dict[str, Any] = {
            "marker": marker,
            "fillstyle": "none",
            "linestyle": "-" if name.startswith("rfa") else "--",
            "label": LABELS[name],
        }
        x = [cell["length"] for cell in line]
        panels[0].loglog(x, [tokens_a_second(cell) for cell in line], **style)
        sizes = [memory(cell) / 1e6 for cell in line]
        if all(sizes):  # without a cache nothing is kept
            panels[1].loglog(x, sizes, **style)
    lengths = sorted({cell["length"] for cell in cells})
    for panel in panels:
        panel.set_xticks(lengths, [f"{length:,}" for length in lengths])
        panel.xaxis.set_minor_locator(ticker.NullLocator())
        panel.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,g}"))
        panel.yaxis.set_minor_formatter(ticker.NullFormatter())
        panel.set_xlabel("tokens of the output")
        panel.grid(alpha=0.3)
    panels[0].set(title="speed", ylabel="tokens a second, all rows")
    panels[1].set(title="memory", ylabel="MB that attention keeps")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    model = kind.replace("_", " ")
    figure.suptitle(f"{model}, batch {batch}\n{title}", fontsize="medium")
    figure.savefig(path, dpi=120)
