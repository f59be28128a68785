"""The paper's tables of parameters and operations (4, 5, 6, 8, 10, 18 and 20), each counted now."""

from typing import Any

from ripe_mambaspike.account.parameters import BYTES, count_parameters
from ripe_mambaspike.models.config import RipeConfig
from ripe_mambaspike.models.flops import count_flops, token_counts
from ripe_mambaspike.models.registry import list_models, meta_model, model_config
from ripe_mambaspike.nn.attention import MembraneAttention
from ripe_mambaspike.nn.bridge import ScaleMixture
from ripe_mambaspike.nn.repconv import FusedConv, RepConv
from ripe_mambaspike.studies.claims.attention import attention_claims
from ripe_mambaspike.studies.claims.compute import KEPT_TOKENS, WIDE, WIDEST, as_counted
from ripe_mambaspike.studies.claims.totals import stages_of
from ripe_mambaspike.studies.claims.variants import attention_size, counted
from ripe_mambaspike.studies.tables.printed import printed_table
from ripe_mambaspike.studies.tables.table import Ours, PaperTable, beside

COUNTED = ("counted now, from the networks built on PyTorch's meta device",)
SIDES = (34, 48, 128, 224)
VARIANTS: dict[str, dict[str, Any]] = {  # rows of Table 20
    "deployed": {},
    "tokens-32": {"num_tokens": 32},
    "tokens-128": {"num_tokens": 128},
    "tokens-256": {"num_tokens": 256},
    "steps-4": {"time_steps": 4},
    "steps-8": {"time_steps": 8},
    "steps-32": {"time_steps": 32},
    "width-64": WIDE,
    "width-128": WIDEST,
    "side-34": {"in_size": 34},
    "side-48": {"in_size": 48},
    "side-224": {"in_size": 224},
}


def architecture_table() -> PaperTable:
    """Table 4: which parts the two networks are made of, looked up in their modules."""
    ours: dict[str, dict[str, Ours]] = {name: {} for name in printed_table(4).rows}
    for column, model in (("Mamba-Spike", "mamba-spike"), ("RIPE-MambaSpike", "dvsgesture")):
        config = model_config(model)
        modules = list(meta_model(config, "training").modules())
        sizes = {count_parameters(config.replace(in_size=side)).deployed for side in SIDES}
        scales = [module for module in modules if isinstance(module, ScaleMixture)]
        convs = [module for module in modules if isinstance(module, RepConv)]
        fused = [module for module in meta_model(config.deployed()).modules() if isinstance(module, FusedConv)]
        found = {
            "repconv": bool(convs),
            "tdm": any(conv.coefficient is not None for conv in convs),
            "attention": any(isinstance(module, MembraneAttention) for module in modules),
            "fixed-width": len(sizes) == 1,
            "multi-resolution": any(len(mixture.scales) > 1 for mixture in scales),
            "fused": bool(convs) and len(fused) == len(convs),
        }
        for row, holds in found.items():
            ours[row][column] = holds
    return beside(4, printed_table(4), ours, sources=("looked up in the modules of both networks",))


def fusion_table() -> PaperTable:
    """Table 5, with the whole counts."""
    found = counted()
    before, after = (stages_of(part) + part["entry"] for part in (found.training_by_part, found.by_part))
    pairs = {
        "backbone": (before, after),
        "rest": (found.training - before, found.deployed - after),
        "full": (found.training, found.deployed),
    }
    columns = printed_table(5).columns
    ours: dict[str, dict[str, Ours]] = {
        row: dict(zip(columns, (count / 1e6 for count in pair), strict=True)) for row, pair in pairs.items()
    }
    note = f"In whole numbers: {found.training:,} in training, {found.deployed:,} deployed."
    return beside(5, printed_table(5), ours, sources=COUNTED, notes=(note,))


def resolution_table() -> PaperTable:
    """Table 6."""
    printed = printed_table(6)
    values: dict[str, list[float | None]] = {}
    for side in SIDES:
        baseline = count_parameters(model_config("mamba-spike", in_size=side))
        joined = baseline.by_part["input_proj"]
        own = count_parameters(model_config("cifar10dvs", in_size=side)).deployed
        values[str(side)] = [own / 1e6, baseline.deployed / 1e6, joined / 1e6, 100 * joined / baseline.deployed]
    small, large = (values[str(side)] for side in (SIDES[0], SIDES[-1]))
    growth = [float(b or 0) / float(a or 1) for a, b in zip(small, large, strict=True)]
    values["growth"] = [*growth[:3], None]
    ours: dict[str, dict[str, Ours]] = {
        row: dict(zip(printed.columns, row_values, strict=True)) for row, row_values in values.items()
    }
    return beside(6, printed, ours, sources=COUNTED)


def footprint_table() -> PaperTable:
    """Table 8. Networks that are not in this package have no count of ours."""
    printed = printed_table(8)
    ours: dict[str, dict[str, Ours]] = {}
    absent = []
    for row, (name, *_) in printed.rows.items():
        if row not in list_models():
            absent.append(str(name))
            continue
        sizes = {} if row in ("cifar10dvs", "mamba-spike") else {"num_classes": 200}
        deployed = count_parameters(model_config(row, **sizes)).deployed
        ours[row] = dict(zip(printed.columns, (deployed / 1e6, BYTES["fp16"] * deployed / 1e6), strict=True))
    notes = (
        f"Not in this package: {', '.join(absent)}.",
        "C3D and TSM are built here for event frames of two channels (docs/comparison.md).",
    )
    return beside(8, printed, ours, sources=COUNTED, notes=notes)


def levels_table() -> PaperTable:
    """Table 10."""
    config = model_config("dvsgesture")
    assert isinstance(config, RipeConfig)
    printed = printed_table(10)
    counts = zip(config.embed_dims, token_counts(config), strict=True)
    ours: dict[str, dict[str, Ours]] = {
        str(level): dict(zip(printed.columns, (width, tokens, config.d_state, config.expand), strict=True))
        for level, (width, tokens) in enumerate(counts, 1)
    }
    return beside(10, printed, ours, sources=("read from the network's config",))


def attention_parameters() -> dict[str, dict[str, Ours]]:
    """Columns of Table 18 that need no training: parameters, and whether every value is inside its hull."""
    names = {"ds-mpa": "full", "low-rank": "low-rank", "grouped": "grouped"}
    bounds = {claim.id: claim.verdict == "holds" for claim in attention_claims() if ".bound." in claim.id}
    whole, full = counted().deployed, attention_size()
    ours: dict[str, dict[str, Ours]] = {}
    for kind, slug in names.items():
        size, total = attention_size(attention=kind), counted(attention=kind).deployed
        held = all(holds for id, holds in bounds.items() if id.startswith(f"attention.bound.{slug}."))
        change = None if kind == "ds-mpa" else 100 * (total / whole - 1)
        values = (size, size / full, held, total, change)
        ours[kind] = dict(zip(printed_table(18).columns, values, strict=True))
    return ours


def operations_table() -> PaperTable:
    """Table 20: in the terms of the paper's counter, with 64 tokens a step, and with the scan."""
    few, scan = f"GFLOPs, {KEPT_TOKENS} tokens a step", "GFLOPs with the scan"
    ours: dict[str, dict[str, Ours]] = {}
    for row, overrides in VARIANTS.items():
        config: Any = model_config("dvsgesture", **overrides)
        height, width = config.grids(*config.in_size)[-1]
        gigas = as_counted(config)
        ours[row] = {
            "parameters, M": count_parameters(config).deployed / 1e6,
            "GFLOPs": gigas,
            "GMACs": gigas / 2,
            few: None
            if row.startswith("tokens-")  # these rows have a number of their own
            else as_counted(config.replace(num_tokens=min(KEPT_TOKENS, height * width))),
            scan: count_flops(config).total / 1e9,
        }
    notes = (
        "The paper's counter never sees the scan. Its rows of T, width and 224×224 were taken with 64 tokens a step, "
        "though it says all of them: compare these with that column.",
        "At 34×34 there are 25 tokens; the odd one is kept here and dropped in the paper's count.",
    )
    return beside(20, printed_table(20), ours, more=(few, scan), sources=COUNTED, notes=notes)
