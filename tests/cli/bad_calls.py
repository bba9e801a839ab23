"""Calls that are wrong, and a word that the one line about each must hold."""

from collections.abc import Iterator

Case = tuple[str, str]  # the call, and the word

HUGE = "100000000000000000000"  # twenty digits
NO_NUMBER = ("six", "1e", "''")
NO_REAL = (*NO_NUMBER, "nan", "inf", "-inf")
POSITIVE = (*NO_REAL, "0", "-1", "-1e200")
SIZE = (*POSITIVE, "1e200", "1e-320")
WHOLE = (*NO_NUMBER, "2.5", "1e3", "nan")
COUNT = (*WHOLE, "0", "-1")
SEED = (*WHOLE, "-1", HUGE)
FLOW = {
    "t1": POSITIVE,
    "points": (*COUNT, "1", "1000000000000000"),
    "key": SEED,
    "rtol": (*POSITIVE, "1e200"),
}

# model: what makes the call right, and each field with values that make it wrong
FIELDS: dict[str, tuple[str, dict[str, tuple[str, ...]]]] = {
    "two_token": (
        "",
        {
            "p": (*NO_REAL, "1", "-1", "2", "1e200"),
            "c0": (*NO_REAL, "1e200", "-1e200"),
            "c1": (*NO_REAL, "1e200", "-1e200"),
            "d": (*COUNT, "1", "1000000000000", HUGE),
            "objective": ("mze", "logistic", "''"),
            "key 1 --scale": SIZE,
            "plot": ("flow.txt", "flow", "/dev/null/flow.png", "/proc/flow.png"),
            **FLOW,
        },
    ),
    "value_softmax": (
        "--projections 0.3 0.1",
        {
            "projections": ("1", "a b", "1 nan", "inf 1", "1e200 1"),
            "loss": ("kl", "hinge", "logstic"),
            "map": ("sofmax", "identity_normalized", "''"),
            "scores": ("1", "1 nan", "1 2 3", "x y"),
            "target-norm": SIZE,
            "key 1 --scale": SIZE,
            **FLOW,
        },
    ),
    "sink_matrix": (
        "",
        {
            "projections": ("1", "a b", "1 nan", "inf 1", "1e200 1"),
            "target-norm": SIZE,
            "key 1 --scale": SIZE,
            **FLOW,
        },
    ),
    "tied_value_softmax": (
        "",
        {"dimension": (*COUNT, "1", "1000000", HUGE), "key 1 --scale": SIZE, **FLOW},
    ),
    "prompt": (
        "",
        {
            "d": (*COUNT, HUGE),
            "n": (*COUNT, "1", HUGE),
            "samples": (*COUNT, HUGE),
            "sigma-p": SIZE,
            "sigma-v": SIZE,
            "near": SIZE,
            "trained": ("x", "p q"),
            "loss": ("hinge", "kl"),
            "attention": ("sofmax", "none"),
            "seed": SEED,
            "chunk": COUNT,
            "steps": (*COUNT, HUGE),
            "step": POSITIVE,
            "optimizer": ("adm", "newton"),
        },
    ),
    "single_location": (
        "",
        {
            "signal": ("spyke", "sparse"),
            "nu1": SIZE,
            "nu2": SIZE,
            "features": (*COUNT, "3", HUGE),
            "tokens": (*COUNT, "1", HUGE),
            "heads": (*COUNT, HUGE),
            "activation": ("softmax1", "relu"),
            "eta": SIZE,
            "dimension": (*SIZE, "3"),
            "samples": (*COUNT, HUGE),
            "seed": SEED,
            "t1": POSITIVE,
            "points": (*COUNT, "1", "1000000000000000"),
            "level": ("exakt", "sgd"),
            "level exact --dimension 50 --rate": SIZE,
            "level fast --dimension": ("1e99", "2e16"),
        },
    ),
    "head": (
        "",
        {
            "task": ("chian", "text"),
            "length": (*COUNT, "1", HUGE),
            "classes": (*COUNT, "1", HUGE),
            "width": (*COUNT, HUGE),
            "scale": SIZE,
            "stay": (*NO_REAL, "-0.1", "1.1"),
            "heads": (*COUNT, "3"),
            "task diversity --diversity": ("unifrm", "random"),
            "seed": SEED,
            "steps": (*COUNT, HUGE),
            "rate": POSITIVE,
            "optimizer": ("adm", "lbfgs"),
            "schedule": ("emm", "cosine"),
            "schedule em --factor": POSITIVE,
        },
    ),
}
OTHERS: list[Case] = [
    ("verfy", "did you mean 'verify'?"),
    ("Verify", "did you mean 'verify'?"),
    ("--verify", "is not known"),
    ("-V", "choose one of"),
    ("--versoin", "is not known"),
    ("''", "is not known"),
    ("simulate two_tokn", "did you mean 'two_token'?"),
    ("simulate --p 0", "'--p' is not known"),
    ("simulate two_token --tyro-print-completion foo", "--tyro-print-completion is not known"),
    ("simulate two_token --timing=1", "--timing"),
    ("runs list --timing", "--timing is not known"),
    ("cache cleer", "did you mean 'clear'?"),
    ("cache info all", "'all' is not known"),
    ("simulate ''", "model '' is not known"),
    ("simulate TwoToken", "is not known"),
    ("simulate value_softmax", "give the start as projections"),
    ("simulate value_softmax --values 1", "--values"),
    ("simulate value_softmax --projections 1 1", "tokens 0 and 1 are tied"),
    ("simulate value_softmax --projections", "at least two tokens"),
    ("simulate head --heads 2 --width 5", "heads"),
    ("simulate prompt --trained", "trained"),
    ("simulate single_location --level exact --dimension 5", "at least 6"),
    ("simulate single_location --level exact --dimension 50.5", "whole number"),
    ("simulate single_location --level fast --t1 1e300 --rate 1e-50", "t1/rate"),
    ("verify u_shpe", "did you mean 'u_shape'?"),
    ("verify u_shape/lemma-3.9", "claim 'lemma-3.9' is not known"),
    ("verify /", "is not known"),
    ("verify u_shape/lemma-3.1/x", "is not known"),
    ("verify ../u_shape", "is not known"),
    ("verify u_shape routing", "'routing' is not known"),
    ("verify --record", "say --slow too"),
    ("verify --slw", "did you mean --slow?"),
    ("verify --json=1", "is not known"),
    ("verify --no-slow", "did you mean --slow?"),
    ("reproduce polarisation", "did you mean 'polarization'?"),
    ("reproduce /1", "paper '' is not known"),
    ("reproduce u_shape/99", "figure '99' is not known"),
    ("reproduce u_shape/1 u_shape/2", "is not known"),
    ("reproduce --preset slow", "--preset 'slow'"),
    ("reproduce --engine cloud", "--engine 'cloud'"),
    ("reproduce --workers 0", "workers"),
    ("reproduce --workers -1", "workers"),
    ("reproduce --workers two", "--workers"),
    ("reproduce --out /dev/null", "--out"),
    ("reproduce --out /dev/null/x --dry-run", "--out"),
    ("reproduce --out /proc/x", "--out"),
    ("reproduce --address auto", "--address"),
    ("reproduce --engine here --workers 2", "--workers"),
    ("reproduce --fresh --resume", "--resume"),
    ("reproduce --dry", "is not known"),
    ("report --out /dev/null", "--out"),
    ("report --out /proc/x", "--out"),
    ("report --store /nowhere", "--store"),
    ("report abc --all", "--all"),
    ("report abc --store /nowhere", "no runs at /nowhere"),
    ("report --oout x", "did you mean --out?"),
    ("runs lst", "did you mean 'list'?"),
    ("runs --store x", "is not known"),
    ("runs list --store /nowhere", "no runs at /nowhere"),
    ("runs show --store /nowhere", "no runs at /nowhere"),
    ("runs compare a b --store /nowhere", "no runs at /nowhere"),
    ("runs rm a --yes --store /nowhere", "no runs at /nowhere"),
    ("runs export --out x.csv --store /nowhere", "no runs at /nowhere"),
    ("runs export", "say where to"),
    ("runs rm", "say which runs"),
    ("runs list --limit x", "--limit"),
    ("runs list --limit -1", "limit"),
    ("runs list --limt 3", "did you mean --limit?"),
    ("runs show a b", "is not known"),
    ("runs show --lines 1.5", "--lines"),
    ("diagnose", "MODEL is missing"),
    ("diagnose m --out page.pdf", "must end in .html"),
    ("diagnose m --out /dev/null/a.html", "--out"),
    ("diagnose m --out /proc/a.html", "--out"),
    ("diagnose m --sequences 0", "sequences"),
    ("diagnose m --sequences x", "--sequences"),
    ("diagnose m --length 0", "length"),
    (f"diagnose m --length {HUGE}", "length"),
    ("diagnose m --rows -1", "rows"),
    ("diagnose m --sink 7", "sink"),
    ("diagnose m --sink nan", "sink"),
    ("diagnose m --seed -1", "seed"),
    (f"diagnose m --seed {HUGE}", "seed"),
    ("diagnose m --data . --text /dev/null", "--data"),
    ("diagnose m --txt a", "did you mean --text?"),
    ("serve --port x", "--port"),
    ("serve --port -1", "port"),
    ("serve --port 70000", "port"),
    ("serve --workers 0", "workers"),
    ("serve --hst x", "did you mean --host?"),
]


def cases() -> Iterator[Case]:
    for model, (right, fields) in FIELDS.items():
        for field, values in fields.items():
            word = field.split("--")[-1].strip()
            yield f"simulate {model} {right} --{field}", word.replace("-", "_")
            yield f"simulate {model} {right} --{field}-typo 1", f"{word}-typo is not known"
            for value in values:
                yield f"simulate {model} {right} --{field} {value}", word.replace("-", "_")
    yield from OTHERS
