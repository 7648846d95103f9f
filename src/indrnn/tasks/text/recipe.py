"""Language modelling: the paper's tables of the Penn Treebank, quicker recipes, and a user's own text."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ...baselines import Baseline, Transformer
from ...checks import check_count, check_fraction, check_not_negative, check_seed
from ...networks import Dense, Language, Plain, Residual
from ...networks.config import NetworkConfig
from ...networks.tokeniser import END, NAMES
from ...training import Cosine, Plateau, Training
from ..recipe import Answer, AnyNetwork, Description, Extra, Loop, Recipe, Row, Samples, Written
from ..table import Summary, Table, command_of, mean, time_of
from .corpus import PENN_CLASSES, Corpus, penn_paths, read_penn_treebank, read_text

if TYPE_CHECKING:
    from torch import nn

    from ..runs import Run
    from .task import LanguageTask

WINDOWS = ("batch_size", "length", "valid_batch", "test_batch", "jitter", "halved", "reset", "seed")
"""Options of `LanguageTask`."""


@dataclass(frozen=True)
class EvaluationOptions:
    """Options of `indrnn evaluate` for language models."""

    test_batch: int | None = None
    """Language models: batch size (parallel streams) in the test; None for that of the run."""
    dynamic: bool = False
    """Language models: dynamic evaluation, which keeps learning from the text just predicted; the run is unchanged."""
    lr: float | None = None
    """Learning rate of --dynamic."""
    decay: float | None = None
    """Rate of --dynamic at which weights decay back to the trained ones."""
    segment: int | None = None
    """Tokens between two updates of --dynamic; None for 20."""
    grid: bool = False
    """Grid search for --dynamic over learning rate and decay, unless given, on the validation text."""
    statistics_windows: int | None = None
    """Training windows for the gradient statistics of --dynamic; None for an epoch."""


_EVALUATE = Extra("evaluate", "language models", EvaluationOptions, "indrnn.tasks.text.dynamic:evaluate")


def measured(unit: str, loss: float) -> float:
    """A loss in nats as perplexity of words, infinite if that overflows, or as bits per character or byte."""
    if unit != "word":
        return loss / math.log(2)
    return math.exp(loss) if loss < 700 else math.inf


def _summary(run: Summary) -> Summary:
    options, config = run["options"], run.pop("config")
    task = config["task"]
    for name in ("text", "valid", "test"):  # their names, and not where they are
        if options.get(name) is not None:
            options[name] = Path(options[name]).name
    # Windows are shorter than `length` by the jitter's share; what is left of an epoch is in none.
    tokens = run["steps"] * task["batch_size"] * task["length"] * (1 - task["halved"] / 2)
    name, epochs = f"{options.get('text', 'Penn Treebank')}, by {task['unit']}", tokens / task["train"]["tokens"]
    return run | {"unit": task["unit"], "task": name, "parameters": config["model"]["parameters"], "epochs": epochs}


def _row(runs: list[Summary]) -> list[object]:
    first = runs[0]
    form = "{:.2f}" if first["unit"] == "word" else "{:.3f}"
    best = mean([measured(run["unit"], run["best"][1]) for run in runs], form)
    test, batch, tokens = "not finished", "", ""
    if all(run["finished"] for run in runs):
        test = mean([measured(run["unit"], run["test"]["loss"]) for run in runs], form)
        batch, tokens = f"{first['test']['batch']}", f"{first['test']['tokens']:,}"
    paper = next((row.value for row in ROWS if row.name == first["recipe"]), "")
    columns = [first["task"], first["name"], f"{first['parameters']:,}", f"{first['epochs']:.1f}", time_of(first)]
    return [*columns, best, test, batch, tokens, paper, command_of(first)]


def check_language(options: Any) -> None:
    """Raise for invalid options of a `LanguageTask`, given as attributes."""
    for name in ("batch_size", "length", "valid_batch", "test_batch"):
        if name in ("batch_size", "length") or getattr(options, name) is not None:
            check_count(name, getattr(options, name))
    check_not_negative("jitter", options.jitter)
    check_fraction("halved", options.halved)
    check_fraction("reset", options.reset)
    check_seed(options.seed)


@dataclass(frozen=True)
class _LanguageRecipe(Recipe):
    """Base of the recipes for the Penn Treebank, which it reads, and for a user's own text, which replaces that."""

    table: ClassVar[Table] = Table(
        name="language",
        metric="loss",
        higher_is_better=False,
        head="task, run, parameters, epochs, time, validation, test, test batch, test tokens, paper, command",
        summary=_summary,
        row=_row,
        curve=lambda run: (
            run["task"],
            run["name"],
            [(step * run["epochs"] / run["steps"], measured(run["unit"], loss)) for step, loss in run["curve"]],
        ),
        picture={"across": "epoch", "up": "validation: bits, or perplexity", "logarithmic": False},
    )
    extras: ClassVar[tuple[Extra, ...]] = (_EVALUATE,)

    _: KW_ONLY
    unit: Literal["char", "word", "byte"] = "char"
    """Type of token: character, word or byte."""
    batch_size: int = 128
    """Batch size: number of text streams read in parallel."""
    length: int = 50
    """Tokens per window of truncated backpropagation; the state is carried to the next window, the gradient is not."""
    jitter: float = 0.0
    """Standard deviation of the window length, in tokens."""
    halved: float = 0.0
    """Probability that a window has about half the length."""
    reset: float = 0.0
    """Probability, at each window, that the states of all streams are reset."""
    valid_batch: int | None = None
    """Batch size in validation; None for that of training."""
    test_batch: int | None = None
    """Batch size in the test; None for that of training."""
    embedding: int = 2000
    """Embedding dimension."""
    tied: bool = False
    """Tie the output weight to the embedding; the network's output size must equal the embedding dimension."""
    start: float = 0.04
    """Initialisation of the embedding: U(-start, start)."""
    embedding_dropout: float = 0.0
    """Embedding dropout: probability that a token's whole vector is dropped, wherever it occurs in a batch."""
    word_dropout: float = 0.0
    """Dropout probability of the embedded features, with one mask for all time steps."""
    model: AnyNetwork = field(default_factory=Plain)
    """The network between embedding and output."""
    training: Loop = field(default_factory=Training)
    """Training options."""
    seed: int = 0
    """Random seed of weights, dropout and windows."""
    data_dir: Path | None = None
    """Data folder; None for INDRNN_DATA or, if unset, the user's cache."""

    @property
    def title(self) -> str:
        """Name of the text."""
        return "the Penn Treebank"

    @cached_property
    def corpus(self) -> Corpus:
        """The text, read once for the task and for the vocabulary."""
        return read_penn_treebank(self.unit, self.data_dir)

    @property
    def classes(self) -> int:
        """Size of the vocabulary; of the Penn Treebank, without reading it."""
        return PENN_CLASSES[self.unit]

    def available(self) -> bool:
        try:
            return bool(penn_paths(self.data_dir))
        except (ValueError, FileNotFoundError):
            return False

    def check(self) -> None:
        check_language(self)
        check_count("embedding", self.embedding)

    def same_data(self, recorded: dict[str, Any], task: Any, *, to_begin: bool = False) -> None:
        now, parts = task.describe(), () if to_begin else ("train", "validation", "test")
        for name in ("tokeniser", *parts):
            if name in recorded and recorded[name] != now[name]:
                what = "vocabulary" if name == "tokeniser" else f"{name} text"
                raise ValueError(f"the {what} is no longer that")

    def task(self, member: int = 0) -> LanguageTask:
        from .task import LanguageTask

        return LanguageTask(self.corpus, **{name: getattr(self, name) for name in WINDOWS})

    def model_config(self, member: int = 0) -> Language:
        if getattr(self.model, "batch_first", False):
            raise ValueError("model.batch_first must be False, as the windows of a text are (time, streams); got True")
        network = self.model.sized(self.embedding, self.length)
        if isinstance(network, NetworkConfig) and network.norm == "step":  # statistics for each step of a window
            network = replace(network, norm_steps=self.length)
        options: dict[str, Any] = {name: getattr(self, name) for name in ("tied", "start", "word_dropout")}
        return Language(network, self.classes, dropout=self.embedding_dropout, **options)

    def trial_config(self) -> Any:
        return self.model.sized(self.embedding, 2)

    def describe(self, recorded: dict[str, Any] | None = None, folder: Path | None = None) -> Description:
        token, streams = NAMES[self.unit], f"{self.batch_size} streams side by side, {self.length}"
        data = f"{self.title}, read in {streams} {token}s at a time."
        if recorded:
            train, validation, test = (recorded[part]["tokens"] for part in ("train", "validation", "test"))
            data = (
                f"{train:,} {token}s of {self.title} to train on, {validation:,} kept back to choose the best weights, "
                f"{test:,} for the test; a vocabulary of {recorded['classes']:,}. Read in {streams} {token}s at a time."
            )
        metric = "perplexity" if self.unit == "word" else "bpc"
        return Description(f"the next {token} of {self.title}", data, metric, higher_is_better=False)

    def answers(self, model: nn.Module, limit: int | None, run: Run) -> list[Answer]:
        """See `Recipe.answers`: two texts that the model generates after a line end."""
        import torch

        language: Any = model
        tokeniser = language.tokeniser
        if tokeniser is None:
            raise ValueError("the run has no tokeniser.json yet, so that its model cannot write")
        length = 80 if tokeniser.unit == "word" else 400
        texts: list[Answer] = []
        for seed in range(2):
            tokens = language.stream(torch.tensor([tokeniser.line_end]), length, temperature=0.8, seed=seed)
            text = "".join(tokeniser.decode_each(map(int, tokens)))
            texts.append(Written(text, f"{length} {NAMES[tokeniser.unit]}s, temperature 0.8, seed {seed}"))
        return texts

    def samples(self, model: nn.Module) -> Samples:
        """See `Recipe.samples`: text to type."""
        tokeniser: Any = model.tokeniser
        if tokeniser is None:
            raise ValueError("explore needs the tokeniser.json of the run, and there is none")
        printed = {*range(32, 127), 9, 10}
        tokens = list(tokeniser.tokens) or [chr(n) if n in printed else f"\\x{n:02x}" for n in range(256)]
        marks = {" ": "␣", tokeniser.space: "␣", "\n": "⏎", "\t": "⇥", END: "⏎"}
        names = [marks.get(token, token) for token in tokens]
        page: dict[str, Any] = {"unit": tokeniser.unit, "tokens": tokens, "names": names, "space": tokeniser.space}
        page |= {"called": NAMES[tokeniser.unit], "start": "it was late and the rain had not stopped", "samples": []}
        return Samples("text", self.length, page, classes=names)


@dataclass(frozen=True)
class PennRecipe(_LanguageRecipe):
    """Predict the next character or word of the Penn Treebank."""

    unit: Literal["char", "word"] = "char"
    """Type of token: character or word."""


@dataclass(frozen=True)
class TextRecipe(_LanguageRecipe):
    """Predict the next character, word or byte of a text of one's own."""

    files: ClassVar[tuple[str, ...]] = ("text", "valid", "test")

    text: Path | None = None
    """Training file: UTF-8 text, or any file if tokens are bytes."""
    valid: Path | None = None
    """Validation file; None to hold out a tenth of the training file, at its end."""
    test: Path | None = None
    """Test file; None to hold out a tenth of the training file, at its end."""
    words: int | None = 10_000
    """Vocabulary size if tokens are words: all but the most frequent become <unk>; None for all words."""
    data_dir: Path | None = None
    """Folder in which the files are looked up by name, if they were moved."""

    def check(self) -> None:
        super().check()
        if self.words is not None:
            check_count("words", self.words, 3)

    @property
    def title(self) -> str:
        return "a text" if self.text is None else self.text.name

    def _places(self) -> dict[str, Path]:
        """The files, in the data folder if there is one."""
        paths = {name: path for name in self.files if (path := getattr(self, name)) is not None}
        return {name: path if self.data_dir is None else self.data_dir / path.name for name, path in paths.items()}

    def available(self) -> bool:
        return all(path.exists() for path in self._places().values())

    @cached_property
    def corpus(self) -> Corpus:
        if self.text is None:
            raise ValueError("text must be the file to train on: --text FILE")
        places = self._places()
        paths = dict.fromkeys(getattr(self, name) for name in places)
        if len(set(places.values())) < len(paths):
            names = ", ".join(map(str, paths))
            raise ValueError(f"data_dir: files of the same name cannot be told apart in {self.data_dir}: {names}")
        return read_text(**places, unit=self.unit, words=self.words if self.unit == "word" else None)

    @property
    def classes(self) -> int:
        return 256 if self.unit == "byte" else self.corpus.tokeniser.classes


_EPOCH = {"char": 783, "word": 145}  # windows of 128 · 50 in the Penn Treebank
_BY_WORD: dict[str, Any] = {"jitter": 5.0, "halved": 0.05, "reset": 0.1, "tied": True}
_BY_WORD |= {"valid_batch": 10, "test_batch": 1}


def _paper(unit: Literal["char", "word"], model: AnyNetwork, *, length: int = 50, **options: Any) -> PennRecipe:
    """The paper's training, for as many epochs as the plateaus may ask for; docs/language.md explains the settings."""
    epoch = _EPOCH[unit] * 50 // length
    if unit == "word":
        options = {"embedding": 600, "embedding_dropout": 0.2, "word_dropout": 0.65, "start": 0.01, **_BY_WORD}
    loop = Training(steps=800 * epoch, schedule=Plateau(5, 100), weight_decay=1e-4, evaluate_every=epoch)
    return PennRecipe(unit=unit, length=length, model=model, training=loop, **options)


_STEP: dict[str, Any] = {"norm": "step", "norm_steps": 50, "norm_place": "before"}
_SIX = Plain(hidden_size=2000, layers=6, dropout=0.25, **_STEP)
_TWENTY_ONE = Residual(hidden_size=2000, blocks=10, dropout=0.3, **_STEP)
_DROPOUT: dict[str, Any] = {"dense_dropout": 0.5, "bottleneck_dropout": 0.1, "transition_dropout": 0.4}
_DENSE = Dense(growth_rate=256, first_layer=False, last_dropout=0.3, **_DROPOUT, **_STEP)
# The bound of 0.99 is from the authors' code. Of the paper's dropout after the last layers of the residual network, 0.5
# after the last recurrent layer and 0.65 after the last transition, the first is 0.45 here, as after all others.
_WORDS: dict[str, Any] = {"last_transition": 600, "last_dropout": 0.65, "bound": 0.99}
_WORDS_RESIDUAL = Residual(hidden_size=2000, blocks=5, dropout=0.45, **_WORDS, **_STEP)
_WORDS_DENSE = replace(_DENSE, **_WORDS)

_QUICK = Training(lr=4e-3, schedule=Cosine(0.05), weight_decay=1e-6, freeze_norms=0.5)
_SMALL: dict[str, dict[str, Any]] = {
    "char": {"embedding": 128},
    "word": {"embedding": 256, "embedding_dropout": 0.1, "word_dropout": 0.3, **_BY_WORD},
    "byte": {"embedding": 128},
}


def _fast(
    unit: Literal["char", "word"], model: AnyNetwork, *, embedding: int | None = None, start: float = 0.04, **loop: Any
) -> PennRecipe:
    """Best result in an hour on two cores; docs/language.md has what was tried, and why |u| <= 0.99."""
    steps, every = {"char": (4 * 3136, 1568), "word": (20 * 580, 580)}[unit]
    training = replace(_QUICK, steps=steps, evaluate_every=every, **loop)
    options = _SMALL[unit] | ({"embedding": embedding} if embedding else {})
    return PennRecipe(unit=unit, batch_size=32, start=start, model=model, training=training, **options)


_FAST_SIX = Plain(hidden_size=512, layers=6, bound=0.99)
_FAST_RESIDUAL = Residual(hidden_size=512, blocks=3, bound=0.99)
_FAST_DENSE = Dense(growth_rate=80, blocks=(4, 3, 2), first_layer=False, bound=0.99)
_FAST_WORDS = replace(_FAST_RESIDUAL, last_transition=256, dropout=0.2, last_dropout=0.3)
_FAST_WORDS_DENSE = replace(_FAST_DENSE, last_transition=256, dense_dropout=0.2, last_dropout=0.3)
_FAST_GRU = _fast("char", Baseline("gru", 600), lr=2e-3, start=1.0, clip_norm=1.0)
_FAST_WORDS_LSTM = _fast("word", Baseline("lstm", 256, 2, dropout=0.3), lr=8e-3, start=0.3)
_TRANSFORMER, _WORDS_TRANSFORMER = Transformer(512, 3, 8, context=50), Transformer(600, 3, 8, context=50)


def _text(unit: Literal["char", "word", "byte"], model: AnyNetwork) -> TextRecipe:
    """A user's own text, with the quick settings of the Penn Treebank."""
    training = replace(_QUICK, steps=3_000, evaluate_every=250)
    return TextRecipe(unit=unit, batch_size=32, model=model, training=training, **_SMALL[unit])


def _penn(name: str, recipe: PennRecipe, value: str, cost: str, parameters: int, begins: str = "") -> Row:
    """A row of the Penn Treebank: of the paper's table, quicker, or beside it."""
    table = {"char": "Table 3", "word": "Table 4"}[recipe.unit]
    if value == Row.NOT_SHOWN:
        table = f"beside {table}"
    elif name.endswith("-fast"):
        table = f"{table}, quicker"
    return Row(f"ptb-{recipe.unit}-{name}", recipe, table, value, cost, parameters, begins)


# What rows cost is 6 · parameters · tokens operations at 1e11 a second, twice that for gates and attention, over 800
# epochs; the quicker ones take as long as they were given.
_char, _word = partial(_paper, "char"), partial(_paper, "word")
_SIX_EARLY = replace(_SIX, highest_start=0.5)  # learns from the first steps on (docs/language.md)
_DENSE_EARLY = _char(replace(_DENSE, highest_start=0.5), embedding=600)
ROWS = (
    _penn("6", _char(_SIX), "1.26 BPC", "70 days", 24_248_050, "after 4,700 steps (the authors' run)"),
    _penn("6-early", _char(_SIX_EARLY), Row.NOT_SHOWN, "70 days", 24_248_050, "before 400 steps (128 neurons)"),
    _penn("6-t100", _char(_SIX, length=100), "1.21 BPC", "70 days", 24_248_050),
    _penn("res21", _char(_TWENTY_ONE), "1.21 BPC", "240 d", 84_368_050),
    _penn("res21-t100", _char(_TWENTY_ONE, length=100), "1.17 BPC", "240 d", 84_368_050),
    _penn("dense", _char(_DENSE, embedding=600), "1.19 BPC", "130 d", 47_277_078),
    _penn("dense-early", _DENSE_EARLY, Row.NOT_SHOWN, "130 d", 47_277_078, "before 500 steps (growth 16, lr 3e-3)"),
    _penn("dense-t100", _char(_DENSE, length=100, embedding=600), "1.16 BPC", "130 d", 47_277_078),
    _penn("rnn", _char(Baseline("rnn", 1000), embedding=1000), "1.55 BPC", "10 days", 2_101_050),
    _penn("lstm", _char(Baseline("lstm", 1000), embedding=1000), "1.36 BPC", "40 days", 8_104_050),
    _penn("gru", _char(Baseline("gru", 1000), embedding=1000), Row.NOT_SHOWN, "30 days", 6_106_050),
    _penn("transformer", _char(_TRANSFORMER, embedding=512), "1.45 BPC", "40 days", 9_772_082),
    _penn("r-transformer", _char(replace(_TRANSFORMER, window=7), embedding=512), "1.24 BPC", "90 days", 14_499_890),
    _penn("6-fast", _fast("char", _FAST_SIX, lr=8e-3), "1.26 BPC", "1 h", 1_420_594),
    _penn("res-fast", _fast("char", _FAST_RESIDUAL), "1.21 BPC", "1 h", 1_684_786),
    _penn("dense-fast", _fast("char", _FAST_DENSE, embedding=256), "1.19 BPC", "1 h", 1_695_594),
    _penn("lstm-fast", _fast("char", Baseline("lstm", 512), start=1.0), Row.NOT_SHOWN, "1 h", 1_344_818),
    _penn("gru-fast", _FAST_GRU, Row.NOT_SHOWN, "1 h", 1_350_450),
    _penn("res12", _word(_WORDS_RESIDUAL), "perplexity 58.99", "25 days", 48_500_400),
    _penn("dense", _word(_WORDS_DENSE), "perplexity 55.24", "27 days", 51_654_512),
    _penn("rnn", _word(Baseline("rnn", 600)), Row.NOT_SHOWN, "5 days", 6_730_600),
    _penn("lstm", _word(Baseline("lstm", 600)), "perplexity 114.5", "8 days", 8_892_400),
    _penn("gru", _word(Baseline("gru", 600)), Row.NOT_SHOWN, "8 days", 8_173_600),
    _penn("transformer", _word(_WORDS_TRANSFORMER), "perplexity 122.37", "15 days", 19_355_200),
    _penn("r-transformer", _word(replace(_WORDS_TRANSFORMER, window=7)), "perplexity 84.38", "30 days", 25_846_000),
    _penn("res-fast", _fast("word", _FAST_WORDS), "perplexity 58.99", "90 min", 4_420_368),
    _penn("dense-fast", _fast("word", _FAST_WORDS_DENSE), "perplexity 55.24", "90 min", 4_260_976),
    _penn("lstm-fast", _FAST_WORDS_LSTM, Row.NOT_SHOWN, "90 min", 3_620_624),
    Row("text-char", _text("char", _FAST_RESIDUAL), "not in the paper", Row.NOT_SHOWN, "1 h"),
    Row("text-word", _text("word", _FAST_WORDS), "not in the paper", Row.NOT_SHOWN, "1 h"),
    Row("text-byte", _text("byte", _FAST_RESIDUAL), "not in the paper", Row.NOT_SHOWN, "1 h", 1_816_832),
)
