"""The tables that `ripe account` prints: for a network, for a network on recordings, and for a sweep."""

from typing import TYPE_CHECKING, Any

from ripe_mambaspike.cli.output import console, format_number, print_table

if TYPE_CHECKING:
    from ripe_mambaspike.account.sweeps import Sweep


def show_account(document: dict[str, Any]) -> None:
    out = console()
    parameters, flops, energy = document["parameters"], document["flops"], document["energy"]
    config = document["config"]
    height, width = document["counted_at"]["in_size"]
    steps, most = document["counted_at"]["time_steps"], config["time_steps"]
    time = f"T {steps}" if steps == most else f"T {steps} of {most}"
    out.print(f"[bold]{document['model']}[/] · {time}, {height}×{width}, {config['num_classes']} classes\n")

    rows = [
        (part, format_number(parameters["training_by_part"][part]), format_number(count))
        for part, count in parameters["by_part"].items()
    ]
    rows.append(("[bold]total", f"[bold]{parameters['training']:,}", f"[bold]{parameters['deployed']:,}"))
    print_table(out, "Parameters", ("part", "training", "deployed"), rows)

    rows = [
        (part.replace("_", " "), format_number(count / 1e9), f"{100 * count / flops['total']:.1f} %")
        for part, count in flops["by_part"].items()
    ]
    rows.append(("[bold]total", f"[bold]{format_number(flops['total'] / 1e9)}", ""))
    rows.append(("without the scan", format_number(flops["without_scan"] / 1e9), ""))
    print_table(out, "GFLOPs of one sample, deployed (a multiply-add is two)", ("part", "GFLOP", "share"), rows)

    sizes = ", ".join(f"{count / 1e6:.2f} MB as {kind}" for kind, count in document["weight_bytes"].items())
    out.print(f"[bold]Weights[/]: {sizes}")
    if "dual_kernel" in document:
        dual = document["dual_kernel"]
        out.print(
            f"[bold]Dual-kernel form[/]: {dual['weights']:,} weights, {dual['more_than_deployed']:,} more than deployed"
        )
    if "recordings" in document:
        _show_storage(out, document["dual_kernel_bytes"])
    out.print()
    if "recordings" in document:
        _show_rates(out, document["recordings"])
    _show_energy(out, energy, spiking=document["spiking_layers"] > 0)
    if "recordings" in document:
        _show_operations(out, document["operations"], document["recordings"])


def _show_energy(out: Any, energy: dict[str, Any], spiking: bool) -> None:
    about = energy["assumptions"]
    title = f"Synaptic operations of one sample, measured on {about['measured_on']}"
    rows = [
        (
            layer["layer"],
            "spikes" if layer["binary"] else "event counts" if layer["reads_events"] else "real values",
            _with_range(layer["rate"], layer.get("rate_range")),
            format_number(layer["macs"] / 1e6),
            "–" if layer["accumulates"] is None else format_number(layer["accumulates"] / 1e6),
        )
        for layer in energy["layers"]
    ]
    made = "additions made, M AC" if "rate_range" in energy["layers"][0] else "by additions, M AC"
    columns = ("convolution", "operand", "mean", "dense, M MAC", made)
    print_table(out, title, columns, rows, left=2)
    out.print(
        f"At {about['technology']} ({about['mac_picojoules']} pJ a multiply-add, {about['ac_picojoules']} pJ an "
        f"addition), leaving out {about['left_out']}:"
    )
    if not spiking:
        out.print(f"  network: {format_number(energy['network_dense_microjoules'])} µJ dense; it has no spikes")
        return
    for part, label in (("backbone", "spiking part"), ("network", "network")):
        dense, event = (format_number(energy[f"{part}_{kind}_microjoules"]) for kind in ("dense", "event"))
        share = 100 * energy[f"eligible_share_of_{part}"]
        out.print(
            f"  {label}: {dense} µJ dense, {event} µJ with additions for the {share:.1f} % of it that reads spikes"
        )


def _show_storage(out: Any, stored: dict[str, dict[str, int]]) -> None:
    sizes = (
        f"{stored['more_than_deployed'][kind] / 1e6:.2f} MB of {count / 1e6:.2f} MB as {kind}"
        for kind, count in stored["whole"].items()
    )
    out.print(f"  which costs {', '.join(sizes)}")


def _show_rates(out: Any, recordings: dict[str, Any]) -> None:
    rows = [
        (layer, f"{rate['mean']:.4f}", f"{rate['min']:.4f}", f"{rate['max']:.4f}")
        for layer, rate in recordings["rates"].items()
    ]
    count = recordings["count"]
    title = f"Spikes a neuron and step, over {count} recording{'s' if count > 1 else ''}"
    print_table(out, title, ("layer", "mean", "least", "most"), rows)


def _show_operations(out: Any, operations: dict[str, Any], recordings: dict[str, Any]) -> None:
    for part, label in (("backbone", "spiking part"), ("network", "network")):
        one = operations[part]
        dense, left, made = (format_number(one[name] / 1e6) for name in ("dense_macs", "macs", "additions"))
        out.print(f"  {label}: {dense} M multiply-adds dense, or {left} M and {made} M additions")
    stay = ", ".join(
        f"{part.replace('_', ' ')} {format_number(macs / 1e6)} M" for part, macs in operations["macs_that_stay"].items()
    )
    out.print(f"  multiply-adds that stay: {stay}")
    differ, spikes = recordings["spikes_that_differ"], recordings["spikes"]
    out.print(
        f"Additions were made and counted by the accumulate-only runtime ({recordings['sums']}): of {spikes:,} spikes "
        f"{differ:,} differ from the dense network's."
    )


def _with_range(mean: float, spread: dict[str, float] | None) -> str:
    return f"{mean:.4f}" if spread is None else f"{mean:.4f} ({spread['min']:.4f}–{spread['max']:.4f})"


def show_sweep(made: "Sweep") -> None:
    out = console()
    names = list(made.units)
    columns = [""] + [f"{name.replace('_', ' ')}, {made.units[name]}" for name in names]
    rows = []
    for row in made.rows:
        rows.append([row.setting] + [f"{format_number(row.ours[name])}" for name in names])
        printed = (row.paper[name] for name in names)
        rows.append(["[dim]  paper"] + [f"[dim]{'–' if value is None else f'{value:g}'}" for value in printed])
    print_table(out, made.title, columns, rows)
    for remark in made.remarks:
        out.print(f"· {remark}")
