"""Stored results as `ripe study` and `ripe bench paper` write them, with made numbers."""

import json

from ripe_mambaspike.train.recipes import save_recipe

RESULT = {
    "format": "ripe-result", "version": 1, "name": "x", "protocol": "validation", "picked_on": "val", "epoch": 1,
    "set": "gestures-hard", "partition": None, "n": 200, "parameters": {"training": 1500000, "deployed": 870000},
    "clips": {"train": 1100, "val": 100, "test": 200}, "seconds": 66.0, "commit": "abc",
}  # fmt: skip
MEASURES = {
    "format": "ripe-measures", "version": 1, "n": 200, "device": "H200", "torch": "2", "conditions": {},
    "measured": ["cost"],
    "cost": {"gflop": 1.0, "synaptic_operations_m": 2.0, "microjoules": 3.0, "dense_microjoules": 4.0},
}  # fmt: skip


def summary(*values):
    n, mean = len(values), sum(values) / len(values)
    sd = (sum((value - mean) ** 2 for value in values) / (n - 1)) ** 0.5 if n > 1 else None
    spread = None if sd is None else 2 * sd
    low, high = (None, None) if spread is None else (mean - spread, mean + spread)
    return {"n": n, "mean": mean, "sd": sd, "low": low, "high": high, "values": list(values)}


def arm(name, values, *, effect=None, verdict=None, **more):
    paper = None if verdict is None else {"dataset": "cifar10dvs", "counterpart": True, "top1": None, "delta": None,
                                             "sd": None, "verdict": verdict}  # fmt: skip
    found = {"arm": name, "title": name.title(), "settings": [], "seeds": list(range(len(values))), "x": None,
             "top1": summary(*values) if values else None,
             "effect": effect, "paper": paper, "rate": None, "rate_sd": None, "conditions": {},
             "parameters": {}}  # fmt: skip
    return found | more


def effect(delta, p=None, stars=None, sigmas=None):
    low, high = (None, None) if p is None else (delta - 0.5, delta + 0.5)
    return {"delta": delta, "low": low, "high": high, "p": p, "p_holm": p, "stars": stars, "sigmas": sigmas}


def store_study(folder, name, sets, **more):
    """sets: set → arms; each stands for CIFAR10-DVS."""
    document = {
        "format": "ripe-study", "version": 1, "study": name, "title": f"The study {name}", "commit": "a" * 40,
        "written": "2026-11-18 05:00", "trained_at": ["b" * 40], "devices": ["NVIDIA H200"], "planned": 10,
        "ended": 10, "failed": 0, "hours": 1.5, "question": "?", "answers": [], "reference": "full",
        "sets": [{"set": one, "dataset": one, "counterpart": "cifar10dvs", "protocol": "validation", "epochs": 1,
                  "clips": {}, "store": None, "arms": arms} for one, arms in sets.items()],
    }  # fmt: skip
    path = folder / "studies" / name / "results.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document | more))
    return path


def measured(device="NVIDIA H200", date="2026-11-18 06:00 UTC", scale=1.0, **more):
    """A document of `ripe bench paper`; every time is a multiple of `scale`."""

    def operator(kind, widths=(32, 64, 128), batch=4, ms=1.0):
        return {"kind": kind, "batch": batch, "widths": list(widths), "parameters": 1, "forward_ms": ms * scale,
                "backward_ms": 3 * ms * scale, "activation_mib": 100.0 * ms}  # fmt: skip

    def path(ms, peak=100.0, activation=80.0):
        return {"median_ms": ms * scale, "peak_mib": peak, "activation_mib": activation}

    rows = [operator(kind, ms=ms) for kind, ms in (("ds-mpa", 2.0), ("gate", 0.5), ("none", 0.1))]
    widths = [operator("ds-mpa", (w, 2 * w, 4 * w), 1, w / 32) for w in (32, 64, 128)]
    steps = {kind: {"median_ms": ms * scale} for kind, ms in (("ds-mpa", 60.0), ("gate", 57.0), ("none", 54.0))}
    latency = {"mamba-spike": (4, 8, 40), "training": (6, 12, 120), "deployed": (4, 8, 120),
               "deployed-kernels": (1, 2, 20), "deployed-captured": (0.5, 1.5, 20)}  # fmt: skip
    document = {
        "bench": "paper", "model": "dvsgesture", "precision": "float32", "time_steps": 16, "in_size": 128, "batch": 4,
        "machine": {"device": "cuda", "name": device, "threads": 1, "torch": "2.11", "commit": "c" * 40, "date": date},
        "attention": {"rows": rows, "widths": widths, "steps": steps,
                      "ratios": [{"batch": batch, "over_gate": 4.0} for batch in (1, 2, 4, 8)]},
        "deployment": [{"path": name, "weights_mib": 1.0, "batch_1": path(one), "batch_8": path(eight, 150.0, mib)}
                       for name, (one, eight, mib) in latency.items()],
        "resolution": [{"side": side, "training": {"samples_per_second": 100 / scale, "peak_mib": 1024.0 * side / 34},
                        "inference": {"samples_per_second": 500 / scale}} for side in (34, 48, 128, 224)],
    }  # fmt: skip
    return document | more


def store_costs(folder, name="2026-11-18-h200-paper.json", **more):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(json.dumps(measured(**more)))
    return path


def write_run(run, top1, **measures):
    run.folder.mkdir(parents=True, exist_ok=True)
    save_recipe(run.recipe, run.folder / "recipe.yaml")
    (run.folder / "result.json").write_text(json.dumps({**RESULT, "top1": top1, "seed": run.seed}))
    (run.folder / "measures.json").write_text(json.dumps({**MEASURES, "top1": top1, **measures}))
