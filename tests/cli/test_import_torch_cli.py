"""``nest import torch``: a user's module, its problem, and what is refused."""

import json

import pytest

from nest.profiles import torch_profiler

FILE = """
import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, width=8, depth=4, reduction="mean"):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, 3)
        self.reduction = reduction

    def forward(self, x, labels):
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x), labels, reduction=self.reduction)


def inputs():
    return torch.randn(2, 8), torch.zeros(2, dtype=torch.long)


def plain():
    return Model(), inputs()


def sums():
    return Model(reduction="sum"), inputs()


def vector():
    return Model(reduction="none"), inputs()


def unlike():
    return Model(), (torch.randn(2, 9), inputs()[1])


def fails():
    raise OSError("no such file")


class Branch(Model):
    def forward(self, x, labels):
        if x.sum() > 0:
            x = -x
        return super().forward(x, labels)


def branch():
    return Branch(), inputs()


class Attention(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8) for _ in range(4))
        self.heads = heads

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (
            y(x).view(b, t, self.heads, -1 if self.heads > 0 else 2).transpose(1, 2)
            for y in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(q, k, v)
        return x + self.o(y.transpose(1, 2).reshape(b, t, -1))


class Attentions(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.layers = nn.ModuleList(Attention(heads) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


def open_heads():
    return Attentions(-1), (torch.randn(2, 3, 8),)


def fixed_heads():
    return Attentions(4), (torch.randn(2, 3, 8),)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        y = self.a(x)
        y = y / y.shape[-1]
        return x + self.b(y)


def scaled():
    module = Attentions(-1)
    module.layers = nn.ModuleList(Scaled() for _ in range(2))
    return module, (torch.randn(2, 3, 8),)


class EarlyScale(Attention):
    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.q(x), self.k(x), self.v(x)
        scale = q.shape[-1] ** -0.5
        q, k, v = (y.view(b, t, -1, 2).transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, scale=scale)
        return x + self.o(y.transpose(1, 2).reshape(b, t, -1))


def early_scale():
    module = Attentions(-1)
    module.layers = nn.ModuleList(EarlyScale(4) for _ in range(2))
    return module, (torch.randn(2, 3, 8),)


def nothing():
    return 3
"""


@pytest.fixture
def model(torch, tmp_path, monkeypatch):
    """A folder with the file ``model.py``."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(FILE)
    return tmp_path


def test_a_module_becomes_a_problem_and_a_plan(cli, model):
    cli.succeeds("import torch model.py:plain --cluster a100x2 --batch 8 -o p.json")
    document = json.loads((model / "p.json").read_text())
    assert [x["id"] for x in document["graph"]["layers"]] == [
        *("blocks.0", "blocks.1", "blocks.2", "blocks.3", "head")
    ]
    source = json.loads(document["model"])["module"]
    assert source["file"] == "model.py"
    assert source["factory"] == "plain"
    assert len(source["sha256"]) == 64
    cli.succeeds("check p.json --why")
    shown = cli.out[cli.out.index("module  ") :].splitlines()
    assert [line.rstrip() for line in shown] == [
        "module         model.py:plain, 5 layers",
        "closed sets    6",
        "not available  cp: the script that runs plans does not cut sequences",
        "assumed        data type: fp32, that of the largest product",
        "assumed        products in fp32 without TF32, as PyTorch runs them by default",
    ]
    cli.succeeds("solve p.json -o plan.json")
    cli.succeeds("check p.json plan.json")


def test_the_file_is_found_beside_the_problem_and_told(cli, model, monkeypatch):
    cli.succeeds("import torch model.py:plain --cluster a100x1 --batch 8 -o p.json")
    cli.succeeds("solve p.json -o plan.json")
    (model / "elsewhere").mkdir()
    monkeypatch.chdir(model / "elsewhere")
    cli.succeeds("export ../p.json ../plan.json --to torch -o run")
    assert f"note: --to torch runs {model / 'model.py'}" in cli.err
    (model / "model.py").write_text("raise SystemExit('PWNED')")
    cli.refuses("export ../p.json ../plan.json --to torch -o again")
    assert "import the module again" in cli.err
    assert "PWNED" not in cli.err


@pytest.mark.parametrize("name", ["scaled", "early_scale"])
def test_numbers_from_sizes_that_are_cut_keep_layers_whole(cli, model, name):
    cli.succeeds(f"import torch model.py:{name} --cluster a100x2 --batch 8 -o p.json")
    document = json.loads((model / "p.json").read_text())
    assert document["job"]["tensor_parallel"] == [1]
    cli.succeeds("check p.json --why")
    assert "takes another number on one" in cli.out


def test_frameworks_have_no_captured_modules(cli, model):
    cli.succeeds("import torch model.py:plain --cluster a100x1 --batch 8 -o p.json")
    cli.succeeds("solve p.json -o plan.json")
    for target in ("megatron", "maxtext"):
        cli.refuses(f"export p.json plan.json --to {target} -o run")
        assert f"--to {target}: expected a model of the framework" in cli.err
        assert "run 'nest export --to torch'" in cli.err


def test_heads_that_the_module_fixes(cli, model):
    """It runs with half of the columns, as four heads of half the size."""
    for name, degrees in (("open_heads", [1, 2]), ("fixed_heads", [1])):
        cli.succeeds(f"import torch model.py:{name} --cluster a100x2 -o {name}.json")
        document = json.loads((model / f"{name}.json").read_text())
        assert document["job"]["tensor_parallel"] == degrees
    source = json.loads(document["model"])["module"]
    assert source["reasons"][0] == (
        "tp 2: layers.0: view yields 2×3×4×1 on one rank instead of 2×3×2×2: the "
        "module fixes its number of heads or columns; leave it open, as in view(b, t, "
        "-1, size)"
    )


def test_what_other_problems_say(cli, files):
    cli.succeeds("check problem.json --why")
    assert "unknown: the problem is not of 'nest import torch'" in cli.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("model.py", "factory: expected FILE.py:FACTORY, got 'model.py'; "),
        ("no.py:plain", "no.py: expected a file with the function plain, found none; "),
        ("model.py:plane", "model.py: expected a function plane, found none; did you "),
        ("model.py:nothing", "model-nothing: expected (module, example_inputs), "),
        ("model.py:fails", "model-fails: expected a factory that runs without "),
        (
            "model.py:vector",
            "model-vector: the module itself: expected a scalar loss, ",
        ),
        ("model.py:unlike", "model-unlike: blocks.0.norm: expected a forward pass "),
        ("model.py:branch", "model-branch: the module itself: expected "),
        (
            "model.py:sums",
            "model-sums: the module itself: expected a loss that is the mean of its "
            "samples' losses, got cross_entropy, which sums over the samples (scalar); "
            "let the loss be a mean over samples, or state with --split-loss that "
            "every micro-batch computes it apart",
        ),
        (
            "model.py:plain --tp 4",
            "--tp: expected at most the 2 devices, got 4; choose ",
        ),
        (
            "model.py:plain --micro-batches 3",
            "--micro-batches: expected at least one divisor of --batch 8, got 3; ",
        ),
        ("model.py:plain --granularity x", "--granularity: expected one of block, "),
    ],
)
def test_what_is_refused(cli, model, arguments, message):
    command = f"import torch {arguments} --cluster a100x2 --batch 8 -o p.json"
    assert cli(command) == 2
    (line,) = cli.err.splitlines()
    assert line.startswith(f"nest: error: {message}")
    assert not (model / "p.json").exists()


def test_devices_of_several_kinds(cli, model):
    assert cli("import torch model.py:plain --cluster a100x2+h100x2 -o p.json") == 2
    assert "--cluster: expected devices of one kind for a captured module" in cli.err


def test_without_pytorch(cli, model, monkeypatch):
    monkeypatch.setattr(torch_profiler.util, "find_spec", lambda name: None)
    assert cli("import torch model.py:plain --cluster a100x2 -o p.json") == 2
    assert "nest import torch: expected package 'torch', got none" in cli.err


def test_measured_layers_are_preferred(cli, model):
    cli.succeeds(
        "profile torch model.py:plain --samples 1,2 --repeats 1 --warm-up 0 "
        "--device cpu --device-name A100-80GB -o profile.json"
    )
    profile = json.loads((model / "profile.json").read_text())
    kinds = ["Block", "Linear"]
    assert [x["kind"] for x in profile["entries"]] == 2 * kinds
    cli.succeeds(
        "import torch model.py:plain --cluster a100x2 --batch 8 --tp 1 "
        "--profile profile.json -o p.json"
    )
    document = json.loads((model / "p.json").read_text())
    assert "4 of 8 layer costs measured" in document["source"]
    block = document["graph"]["kinds"][0]
    measured = profile["entries"][0]
    assert block["costs"][0]["forward_ns"] == measured["forward_ns"]
    assert block["costs"][0]["measured"] is True


def test_help_of_both_profiles(cli):
    cli.succeeds("profile torch --help")
    assert "nest profile torch" in cli.out
    assert "--granularity" in cli.out
    cli.succeeds("profile --help")
    assert "--model" in cli.out


def test_prints_of_the_user_are_no_result(cli, model):
    text = FILE.replace("def plain():", "def plain():\n    print('built')")
    (model / "model.py").write_text(text)
    cli.succeeds("import torch model.py:plain --cluster h100x2 -o -")
    assert json.loads(cli.out)["schema"] == "nest-problem/1"
    assert "built" in cli.err
