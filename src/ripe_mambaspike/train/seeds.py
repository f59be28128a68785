"""One recipe with several seeds, and folds: every run a process of its own, here or on Slurm."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from ripe_mambaspike.errors import ConfigError, InputError, WeightsError
from ripe_mambaspike.files import MAX_JSON, read_regular
from ripe_mambaspike.train.recipe import RESUMABLE_FIELDS, Recipe

RESULT_FILE, RECIPE_FILE = "result.json", "recipe.yaml"
MAX_SEEDS = 1000
LARGEST_SEED = 2**32 - 1
CHOSEN_HERE = ("run.seed", "data.fold", "data.folds")
IGNORED_FIELDS = {"name", *RESUMABLE_FIELDS}  # may differ between two runs of one recipe
CLUSTER = "slurm"
SLURM_DEFAULTS: dict[str, Any] = {"timeout_min": 24 * 60, "gpus_per_node": 1, "cpus_per_task": 4}
POLL_SECONDS = 1.0
FILE_SYSTEM_SECONDS = 10.0  # that a file of another machine may take to show


@dataclass(frozen=True)
class SeedRun:
    """One training run of the group."""

    seed: int
    fold: int | None
    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def log(self) -> Path:
        """Where what it prints goes; beside the folder, which is the run's own."""
        return self.folder.parent / "logs" / f"{self.name}.txt"


@dataclass(frozen=True)
class Outcome:
    """How a run ended: its result, or why there is none."""

    run: SeedRun
    result: dict[str, Any] | None
    error: str | None = None
    reused: bool = False


Report = Callable[[Outcome], None]


def parse_seeds(text: str) -> list[int]:
    """`0-4`, `0,2,7` or `3`."""
    wanted = f"seeds are {text[:60]!r}; a range such as 0-4, a list such as 0,2,7 or one whole number is wanted"
    words = text.split("-") if "-" in text else text.split(",")
    if not all(word.isascii() and word.isdigit() and len(word) < 12 for word in words):
        raise ConfigError(wanted)
    numbers = [int(word) for word in words]
    if "-" in text:
        if len(numbers) != 2 or numbers[0] > numbers[1]:
            raise ConfigError(wanted)
        numbers = list(range(numbers[0], min(numbers[1], numbers[0] + MAX_SEEDS) + 1))
    if len(set(numbers)) != len(numbers):
        raise ConfigError(f"seeds are {text[:60]!r}; each one once is wanted")
    if len(numbers) > MAX_SEEDS or max(numbers) > LARGEST_SEED:
        raise ConfigError(f"seeds are {text[:60]!r}; at most {MAX_SEEDS} up to {LARGEST_SEED} are wanted")
    return numbers


def plan_runs(seeds: Sequence[int], folds: int | None, out: Path) -> list[SeedRun]:
    """Every seed, or every fold of every seed, with a folder of its own."""
    if folds is None:
        return [SeedRun(seed, None, out / f"seed-{seed}") for seed in seeds]
    if folds < 2:
        raise ConfigError(f"folds is {folds}; at least 2 are wanted")
    return [SeedRun(seed, fold, out / f"seed-{seed}-fold-{fold}") for seed in seeds for fold in range(folds)]


def check_settings(settings: Sequence[str]) -> None:
    """What this command chooses itself is not set by hand."""
    for setting in settings:
        if (name := setting.partition("=")[0].strip()) in CHOSEN_HERE:
            raise ConfigError(f"'{setting}' sets {name}, which --seeds and --folds choose; other fields are wanted")


def run_settings(run: SeedRun, folds: int | None, settings: Sequence[str]) -> list[str]:
    """The recipe's settings in this run."""
    fold = [] if run.fold is None else [f"data.folds={folds}", f"data.fold={run.fold}"]
    return [*settings, f"run.seed={run.seed}", *fold]


def train_command(recipe: str, run: SeedRun, settings: Sequence[str]) -> list[str]:
    """The words that train one run; it goes on where an earlier try was cut off."""
    program = [sys.executable, "-m", "ripe_mambaspike", "train", recipe]
    return [*program, "--out", str(run.folder), "--resume", "auto", "--set", *settings]


def read_result(folder: Path) -> dict[str, Any] | None:
    """A run's result; None where it has none yet."""
    path = folder / RESULT_FILE
    wanted = "the file written by ripe train is wanted"
    try:
        document = json.loads(read_regular(path, MAX_JSON))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise WeightsError(f"{path} cannot be read ({error.strerror or error}); {wanted}", path=path) from error
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{path} is not valid JSON ({error}); {wanted}", path=path) from error
    if not isinstance(document, dict) or document.get("format") != "ripe-result" or document.get("version") != 1:
        raise WeightsError(f"{path} is not a ripe-result file of version 1; {wanted}", path=path)
    count = document.get("n")
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise WeightsError(f"{path} has n {count!r}; a whole number of at least 1 is wanted", field="n", path=path)
    for name in ("top1", "top5"):
        share = document.get(name)
        if share is None and name == "top5":
            continue
        if not isinstance(share, int | float) or isinstance(share, bool) or not 0 <= share <= 1:
            raise WeightsError(f"{path} has {name} {share!r}; a share from 0 to 1 is wanted", field=name, path=path)
    return document


def pinned_store(recipe: Recipe) -> list[str]:
    """The setting that keeps all runs of a group on one preparation of the set.

    Nothing where the recipe names one, or none is there yet.
    """
    from ripe_mambaspike.data.clips import root_of
    from ripe_mambaspike.data.sets.registry import STORE
    from ripe_mambaspike.data.store import current_key

    data = recipe.data
    key = current_key(root_of(data) / STORE / data.dataset) if data.store is None else None
    return [] if key is None else [f"data.store={key}"]


def finished(run: SeedRun, recipe: Recipe) -> dict[str, Any] | None:
    """The result of an earlier run of this recipe; None where there is none, an error where it is another recipe's."""
    from ripe_mambaspike.train.recipes import difference, load_recipe
    from ripe_mambaspike.train.sizes import with_sizes_of

    result = read_result(run.folder)
    if result is None:
        return None
    saved = load_recipe(run.folder / RECIPE_FILE)
    if None in (recipe.data.store, saved.data.store):
        recipe, saved = (replace(one, data=replace(one.data, store=None)) for one in (recipe, saved))
    found = difference(with_sizes_of(recipe, saved), saved)
    if differing := [field for field in found if field not in IGNORED_FIELDS]:
        raise InputError(
            f"{run.folder} holds a finished run with another {', '.join(differing[:4])}; another --out is wanted"
        )
    return result


def run_local(commands: Sequence[tuple[SeedRun, list[str]]], jobs: int, report: Report) -> list[Outcome]:
    """Run the commands, so many at once; a failed one leaves the others alone. Stopping ends all that were begun."""
    begun: list[subprocess.Popen[bytes]] = []
    lock, stopping = threading.Lock(), threading.Event()

    def one(run: SeedRun, words: list[str]) -> Outcome:
        run.log.parent.mkdir(parents=True, exist_ok=True)
        with run.log.open("wb") as log:
            with lock:
                if stopping.is_set():
                    return Outcome(run, None, "it was not begun")
                process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
                begun.append(process)
            code = process.wait()
        return _outcome(run, code)

    outcomes: dict[SeedRun, Outcome] = {}
    with _stopped_by_terminate(), ThreadPoolExecutor(jobs) as pool:
        waiting = {pool.submit(one, run, words) for run, words in commands}
        try:
            while waiting:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    outcome = future.result()
                    outcomes[outcome.run] = outcome
                    report(outcome)
        except BaseException:
            with lock:
                stopping.set()
                for process in begun:
                    process.terminate()
            raise
    return [outcomes[run] for run, _ in commands]


@contextmanager
def _stopped_by_terminate() -> Iterator[None]:
    """Inside, being told to end is as good as Ctrl-C: runs left alone would meet the next try in their folders."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Training:
    """What a Slurm job does; told to stop before its time, it is queued again and goes on from its checkpoint."""

    def __init__(self, words: list[str], log: str) -> None:
        self.words, self.log = words, log

    def __call__(self) -> int:
        Path(self.log).parent.mkdir(parents=True, exist_ok=True)
        with Path(self.log).open("ab") as log:
            return subprocess.run(self.words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT).returncode

    def checkpoint(self) -> Any:
        return import_module("submitit.helpers").DelayedSubmission(self)


def slurm_parameters(words: Sequence[str]) -> dict[str, Any]:
    """`PARTITION [key=value …]` as submitit takes them."""
    if not words or "=" in words[0]:
        raise ConfigError("--slurm was given no partition; PARTITION [key=value …] is wanted")
    parameters: dict[str, Any] = {**SLURM_DEFAULTS, "slurm_partition": words[0]}
    for word in words[1:]:
        key, equals, value = word.partition("=")
        if not equals or not key or not value:
            raise ConfigError(f"--slurm was given '{word}'; key=value, such as timeout_min=600, is wanted")
        parameters[key] = int(value) if value.isascii() and value.isdigit() else value
    return parameters


def slurm_executor(folder: Path, parameters: dict[str, Any]) -> Any:
    """Where jobs are submitted; everything that can be wrong with it is said before anything runs."""
    try:
        submitit = import_module("submitit")  # extra `train`
    except ImportError as error:
        raise InputError("--slurm needs submitit; pip install 'ripe-mambaspike[train]' is wanted") from error
    try:
        executor = submitit.AutoExecutor(folder / "slurm", cluster=CLUSTER)
        executor.update_parameters(**parameters)
    except (RuntimeError, NameError, ValueError, TypeError, AssertionError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise InputError(f"--slurm cannot be used here ({reason})") from error
    return executor


def run_slurm(commands: Sequence[tuple[SeedRun, list[str]]], executor: Any, report: Report) -> list[Outcome]:
    """Submit every command as a job and wait for all. What a job returns is not read: its run's folder tells."""
    jobs = {run: executor.submit(Training(words, str(run.log))) for run, words in commands}
    outcomes: dict[SeedRun, Outcome] = {}
    try:
        while len(outcomes) < len(jobs):
            for run, job in jobs.items():
                if run not in outcomes and job.done():
                    outcomes[run] = _slurm_outcome(run, job)
                    report(outcomes[run])
            if len(outcomes) < len(jobs):
                time.sleep(POLL_SECONDS)
    except BaseException:
        for run, job in jobs.items():
            if run not in outcomes:
                job.cancel(check=False)
        raise
    return [outcomes[run] for run, _ in commands]


def _slurm_outcome(run: SeedRun, job: Any) -> Outcome:
    until = time.monotonic() + FILE_SYSTEM_SECONDS
    while not (run.folder / RESULT_FILE).exists() and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
    outcome = _outcome(run, 0)
    if outcome.error is None:
        return outcome
    return Outcome(run, None, f"{outcome.error} (job {job.job_id}, {job.state})")


def _outcome(run: SeedRun, code: int) -> Outcome:
    try:
        result = read_result(run.folder)
    except WeightsError as error:
        return Outcome(run, None, str(error))
    if code == 0 and result is not None:
        return Outcome(run, result)
    last = _last_line(run.log)
    ended = f"exit code {code}" if code else f"no {RESULT_FILE}"
    return Outcome(run, None, f"{ended}: {last}" if last else ended)


def _last_line(log: Path) -> str:
    """The last thing that a run said."""
    try:
        lines = log.read_bytes()[-4096:].decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    said = [line.split("\r")[-1].strip() for line in lines]
    return next((line.removeprefix("ripe: ") for line in reversed(said) if line), "")
