"""Launch lines as people have them, read and never run."""

from __future__ import annotations

import json
import re

import pytest
from msgspec.structs import replace

from nest.constraints.targets import for_target
from nest.cost.score import score
from nest.errors import InvalidOptionError, InvalidPlanError
from nest.frameworks import deepspeed, torchtitan
from nest.frameworks.export import export
from nest.frameworks.hosts import read_hosts
from nest.frameworks.importing import Site, build, overlap_of, placed
from nest.frameworks.launch import Settings, launch_of
from nest.frameworks.layers import Chunk, placement_of
from nest.frameworks.scripts import in_variables, read_launch
from nest.frameworks.shell import read_script
from nest.hardware import machine
from nest.hardware.calibration import stored_calibration
from nest.ir import Strategy
from nest.models.zoo import architecture
from tests.builders import with_job
from tests.exports import (
    cut_plan,
    small_model,
    small_plan,
    small_problem,
    uniform_plans,
)

# The shell


def words(text, **given):
    commands = read_script(text, "run.sh", given).commands
    return [[word.text for word in command.words] for command in commands]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a b  c", [["a", "b", "c"]]),
        ("a 'b  c' \"d e\" f\\ g", [["a", "b  c", "d e", "f g"]]),
        ("a \\\n  b", [["a", "b"]]),
        ("a # b\nc", [["a"], ["c"]]),
        ("a#b", [["a#b"]]),
        ("a; b && c | d", [["a"], ["b"], ["c"], ["d"]]),
        ("X=4\na $X ${X} \"$X\" '$X'", [["a", "4", "4", "4", "$X"]]),
        ("export X=4; a $X", [["a", "4"]]),
        ("a ${X:-4} ${Y-5}", [["a", "4", "5"]]),
        ("X=\na ${X:-4} b${X-5}", [["a", "4", "b"]]),
        ("X=2\na ${X:+set} ${Y:+set}", [["a", "set"]]),
        ("X=3 Y=4\na $((X*$Y + 1)) $((Y/X))", [["a", "13", "1"]]),
        ('X="b c"\na $X "$X"', [["a", "b", "c", "b c"]]),
        ("X=(b 'c d' # e\n f)\na ${X[@]}", [["a", "b", "c", "d", "f"]]),
        ('X=(b "c d")\nX+=(e)\na "${X[@]}"', [["a", "b", "c d", "e"]]),
        ('X="b"\nX+=" c"\na $X', [["a", "b", "c"]]),
        ("cat <<EOF > x\nb $X\nEOF\na", [["cat"], ["a"]]),
        ("a > out 2>&1 < in b", [["a", "b"]]),
        ("if true; then\n a b\nfi", [["a", "b"]]),
        ("if false; then\n a\nelse\n b\nfi; c", [["b"], ["c"]]),
        ("X=4\nif [ $X = 4 ]; then a; elif true; then b; fi", [["a"]]),
        ("X=4\nif [[ $X -gt 4 ]]; then a; elif [ -n x ]; then b; else c; fi",
         [["b"]]),
        ('X=\nif [[ -z "$X" ]]\nthen\n a\nfi', [["a"]]),
        ('X=b\nif [ "$X" != b ]; then Y=1; fi\na ${Y:-2}', [["a", "2"]]),
        ("if true; then if false; then a; fi; b; fi", [["b"]]),
        ('a "b\\\n c" d', [["a", "b c", "d"]]),
        ("a $$ $", [["a", "", "$"]]),
        ("TP=4 B=0; [[ $B == 1 ]] && TP=8; a $TP", [["a", "4"]]),
        ('TP=4; [ -n "$TP" ] || TP=8; a $TP', [["a", "4"]]),
        ("PP=4; test 0 = 1 && PP=1; a $PP", [["a", "4"]]),
        ("V=; [ ${U:-0} = 1 ] && V='--x 8'; a 1 $V", [["a", "1"]]),
        ("V=; [ ${U:-1} = 1 ] && V='--x 8'; a 1 $V", [["a", "1", "--x", "8"]]),
        ("X=1; true && X=2 || X=3; a $X", [["a", "2"]]),
        ("false && X=4 || X=5; a $X", [["a", "5"]]),
        ("X=1; ! true && X=2; a $X; ! false && X=3; a $X",
         [["a", "1"], ["a", "3"]]),
        ("if ! true; then X=1; else X=2; fi; a $X", [["a", "2"]]),
        ("X=3; [[ $X -gt 2 && ( $X == 3 || b ) ]] && a; [[ ! $X = 3 ]] || b",
         [["a"], ["b"]]),
        ("[ 1 -eq 1 -a 2 -eq 3 ] || a; [ 1 = 2 -o 2 = 2 ] && b",
         [["a"], ["b"]]),
        ("[ ! 1 = 2 ] && a; [ ] || b; [ c ] && c; [ ! d ] || d",
         [["a"], ["b"], ["c"], ["d"]]),
        ("[[ abc == a* ]] && a; [[ abc == 'a*' ]] || b", [["a"], ["b"]]),
        ("X=8b\ncase $X in\n7b|8?) L=1;;\n*) L=2;;\nesac; a $L",
         [["a", "1"]]),
        ("case x in (y) L=1;; (*) L=2;; esac; a $L", [["a", "2"]]),
        ("TP=4; setup() { TP=8; }; a $TP; setup; a $TP",
         [["a", "4"], ["a", "8"]]),
        ("function f { TP=$1; shift; a $1 $# \"$@\"; }; f 8 'b c'; a $TP",
         [["a", "b", "c", "1", "b c"], ["a", "8"]]),
        ("T=1; f() { local T=5; U=$T; }; f; a $T $U", [["a", "1", "5"]]),
        ("U=1; f() { [ $1 = x ] && return; U=4; }; f x; a $U; f y; a $U",
         [["a", "1"], ["a", "4"]]),
        ("f() { return 1; }; f || a", [["a"]]),
        ("f() { a $X; }; X=1; X=9 f; a $X", [["a", "9"], ["a", "1"]]),
        ("X=1; X=9 b; a $X", [["b"], ["a", "1"]]),
        ("TP=4; (TP=8; a $TP); a $TP", [["a", "8"], ["a", "4"]]),
        ("TP=4; b | TP=8; TP=9 & a $TP", [["b"], ["a", "4"]]),
        ("if true; then a; exit 0; fi; b", [["a"]]),
        (': "${TP:=4}"; a $TP; : "${TP:=5}"; a $TP',
         [["a", "4"], ["a", "4"]]),
        ("T=4; let T=T*2; a $T; ((T*=2)); a $T; ((T++)); a $T",
         [["a", "8"], ["a", "16"], ["a", "17"]]),
        ("X=2; Y=$((X++ + ++X)); a $X $Y", [["a", "4", "6"]]),
        ("((3 > 2)) && a; ((3 > 4)) || b", [["a"], ["b"]]),
        ("TP=4; unset TP; a x$TP ${TP:-3}", [["a", "x", "3"]]),
        ("A=(1 2 3); a ${A[0]} ${A[2]}x ${A[5]} ${#A[@]}",
         [["a", "1", "3x", "3"]]),
        ("A=(1); A[1]=7; A[0]=2; a ${A[@]}", [["a", "2", "7"]]),
        ('X=(); a "${X[@]}" ${X:-4} ${X-5}', [["a", "4", "5"]]),
        ("a $((2+3*4**2)) $((-7/2)) $((-7%3)) $((1<<3)) $((0x10))",
         [["a", "50", "-3", "-1", "8", "16"]]),
        ("a $((5>4 ? 1 : 0)) $((!0)) $((5,6)) $((-2**2)) $((1&&0||1))",
         [["a", "1", "1", "6", "4", "1"]]),
        ('export "X=8"; a $X', [["a", "8"]]),
        ("a &> log; b 2>/dev/null; cat <(a)", [["a"], ["b"], ["cat", ""]]),
    ],
)  # fmt: skip
def test_scripts_are_read_as_the_shell_would(text, expected):
    assert words(text) == expected


def test_texts_keep_what_is_known_around_what_is_not():
    text = 'X="--a $Y --b c$Z --d"\nrun $X "$X"'
    command = read_script(text, "run.sh").commands[0]
    assert [(word.text, word.unknown) for word in command.words] == [
        ("run", ""),
        ("--a", ""),
        ("", "$Y, which the script does not set"),
        ("--b", ""),
        ("c", "$Z, which the script does not set"),
        ("--d", ""),
        ("--a  --b c --d", "$Y, which the script does not set"),
    ]


def test_given_variables_win_over_the_scripts():
    assert words("X=4\na $X $Y", X="8", Y="9") == [["a", "8", "9"]]


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("a $X", "$X, which the script does not set"),
        ("a $1", "$1, an argument of the script"),
        ("a $(nproc --all)", "the output of nproc"),
        ("a `nproc`", "the output of nproc"),
        ("if b; then\nX=4\nfi\na $X", "$X, which is set on a condition in line 2"),
        ("if [ -f x ]; then\nX=4\nelse\nX=5\nfi\na $X",
         "$X, which is set on a condition in line 4"),
        ("if true && b; then\nX=4\nfi\na $X",
         "$X, which is set on a condition in line 2"),
        ("X=1\nwhile true; do\nX=4\ndone\na $X",
         "$X, which is set on a condition in line 3"),
        ('X="b c"\nif [ $X = b ]; then\nY=4\nfi\na $Y',
         "$Y, which is set on a condition in line 3"),
        ("if [[ a =~ a+ ]]; then\nX=4\nfi\na $X",
         "$X, which is set on a condition in line 2"),
        ("case $Y in\n4) X=4;;\nesac\na $X",
         "$X, which is set on a condition about $Y in line 2"),
        ("for X in 1 2; do\na $X\ndone", "$X, which a loop sets"),
        ("X[2]=4\na $X", "$X, set element by element"),
        ("X=4\na ${X%%b}", "${X%%b}"),
        ("T=4; b && T=8; a $T", "$T, which is set on a condition in line 1"),
        ("T=4; b || T=8; a $T", "$T, which is set on a condition in line 1"),
        ('[ -n "$T" ] || T=8; a $T',
         "$T, which is set on a condition in line 1"),
        ("f() { T=8; }; T=4; b && f; a $T",
         "$T, which is set on a condition in line 1"),
        ("f() { b && return; T=8; }; T=4; f; a $T",
         "$T, which is set on a condition in line 1"),
        ("T=4; b && unset T; a $T",
         "$T, which is set on a condition in line 1"),
        ("X=--b; b && X+=' --c'; a $X",
         "$X, which is set on a condition in line 1"),
        ("X=(1); b && X+=(2); a ${X[@]}",
         "$X, which is set on a condition in line 1"),
        ("T=4; ((T*=N)); a $T", "$N, which the script does not set"),
        ("T=4; let T=08; a $T", "$T, which is computed in line 1"),
        ("T=4; read T; a $T", "$T, which read sets"),
        ("T=4; eval T=$(b); a $T", "the output of b"),
        ("declare -A M=([b]=4); a ${M[b]}", "${M[b]}"),
        ("A=($X 2); a ${A[1]}", "${A[1]}"),
        ("E=( $MORE ); a ${E[@]}", "$MORE, which the script does not set"),
        ('X=(--b "$M"); a ${X[@]}', "$M, which the script does not set"),
        ("for ((i=0; i<3; i++)); do a $i; done", "$i, which a loop sets"),
        ("[[ x == (y|z)* ]] && X=1; a $X",
         "$X, which is set on a condition in line 1"),
        ("a $((X+1))", "$X, which the script does not set"),
        ("a $((2#101))", "$((2#101))"),
    ],
)  # fmt: skip
def test_what_only_running_could_tell_is_unknown(text, unknown):
    word = read_script(text, "run.sh").commands[-1].words[-1]
    assert word.unknown == unknown


def test_what_grows_on_a_condition_keeps_what_was_there():
    for text in ("X=-b; b && X+=' -c'\na $X", "X=(-b); b && X+=(c)\na ${X[@]}"):
        command = read_script(text, "run.sh").commands[-1]
        assert [word.text for word in command.words[:2]] == ["a", "-b"]


@pytest.mark.parametrize(
    "text",
    ["}\nfi\n)\nesac", "if b; then a", "f( {\na", "case x in", "for",
     "[[ a", "a() {", "let", "[", "X=1 ;;", "while :; do a", "select",
     "function", "!", "&& a", "a;; b", "$((1+))"],
)  # fmt: skip
def test_broken_scripts_end(text):
    assert read_script(text, "run.sh")


@pytest.mark.parametrize(
    "text", ["f() { f; }\nf", "g() { :; }\n"
             + "".join(f"f{n}() {{ f{n - 1}; f{n - 1}; }}\n"
                       for n in range(1, 19)) + "f0() { g; }\nf18"],
    ids=["itself", "many"],
)  # fmt: skip
def test_functions_that_do_not_end_are_refused(text):
    with pytest.raises(
        InvalidOptionError, match=r"run.sh:\d+: expected functions that end, "
    ):
        read_script(text, "run.sh")


def test_functions_may_call_themselves():
    text = """
        f() { [ $1 = 0 ] && return; T=$((T*2)); f $(($1-1)); }
        retry() { cd x || retry; }
        T=1; retry; f 3; a $T
    """
    assert words(text)[-1] == ["a", "8"]


def test_nothing_is_run(tmp_path):
    place = tmp_path / "made"
    read_script(f"a $(touch {place})\ntouch {place}\nX=`touch {place}`", "x")
    assert not place.exists()


def test_words_know_their_lines():
    text = 'X="--a 1 \\\n  --b 2\n --c"\nY=(\n d\n)\nrun $X "${Y[@]}"\n'
    command = read_script(text, "run.sh").commands[0]
    assert [(word.text, word.line) for word in command.words] == [
        ("run", 7),
        ("--a", 1),
        ("1", 1),
        ("--b", 2),
        ("2", 2),
        ("--c", 3),
        ("d", 5),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\n'b", r"run.sh:2: expected a closing ', got none"),
        ('a "b', r'run.sh:1: expected a closing ", got none'),
        ("X=(a", r"run.sh:1: expected a closing \), got none"),
        ("a ${X", r"run.sh:1: expected a closing }, got none"),
        ("a <<EOF\nb", r"run.sh:1: expected a line 'EOF' that ends"),
    ],
)
def test_open_quotes_are_refused_with_their_line(text, message):
    with pytest.raises(InvalidOptionError, match=message):
        read_script(text, "run.sh")


# Launch lines

SCRIPT = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gpus-per-node=8
TP=${TP:-2}
PP=2
MODEL=(
    --num-layers 8 --hidden-size 256 --num-attention-heads 8
    --ffn-hidden-size 512 --group-query-attention --num-query-groups 4
    --seq-length 1024 --max-position-embeddings 1024
    --position-embedding-type rope --vocab-size 1024 --swiglu
    --untie-embeddings-and-output-weights --normalization RMSNorm
    --disable-bias-linear --attention-dropout 0 --hidden-dropout 0
)
SPLIT="--tensor-model-parallel-size $TP \\
    --pipeline-model-parallel-size $PP --sequence-parallel"
srun python pretrain_gpt.py "${MODEL[@]}" $SPLIT \\
    --micro-batch-size 2 --global-batch-size 64 --bf16 --lr 1e-4 \\
    --use-distributed-optimizer --save $OUT --train-iters 10
"""


def launched(text=SCRIPT, world=16, **more):
    return read_launch(text, "run.sh", world, **more)


def test_a_script_becomes_a_launch():
    launch, model, inside = launched().reading
    # 16 devices over tp 2 and 2 stages are 4 data ranks of 2 samples.
    assert launch.strategy == Strategy(dp=4, tp=2, zero=1)
    assert (launch.stages, launch.micro_batch, launch.global_batch) == (2, 8, 64)
    assert [chunk.layers for chunk in launch.chunks] == [4, 4]
    assert launch.gradient_bytes == 4
    assert launch.sequence_parallel
    assert not inside
    assert model.parameters == small_model().parameters


def test_variables_can_be_given():
    launch = launched(variables={"TP": "4"}).reading.launch
    assert (launch.tp, launch.dp) == (4, 2)


def test_defaults_are_named():
    note, ignored = launched().notes
    assert ignored == (
        "run.sh: ignored 3 arguments that nest does not read: --lr, --save, "
        "--train-iters"
    )
    assert note.startswith("not in the script, so Megatron-LM's defaults: ")
    assert "--kv-channels" in note
    assert "--hidden-size" not in note


def test_what_may_hide_arguments_is_named():
    text = SCRIPT.replace("--bf16", "--bf16 $MORE")
    notes = launched(text).notes
    assert (
        "run.sh:17: not read: $MORE, which the script does not set; what it "
        "holds is left out" in notes
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("--nodes=2", "--nodes=1", r"run.sh:3: --gpus-per-node 8 and run.sh:2"
         r": --nodes 1: expected the 16 devices of --cluster, got 8"),
        ("PP=2", "PP=32", r"run.sh:3: --gpus-per-node 8 and run.sh:2: --nodes "
         r"2: expected devices for 64 ranks of a data rank \(run.sh:14: "
         r"--tensor-model-parallel-size 2, run.sh:15: "
         r"--pipeline-model-parallel-size 32\), got 16"),
        ("--hidden-size 256", "", r"--hidden-size: expected a value, got "
         r"none; add it, or pass --say hidden-size=N"),
        ("--vocab-size 1024", "--vocab-size $V", r"run.sh:10: --vocab-size: "
         r"expected a value that the script states, got \$V, which the "
         r"script does not set; say it with --set V=VALUE"),
        ("--vocab-size 1024", "--vocab-size $(wc x)", r"got the output of wc; "
         r"write the value into the script"),
        ("--bf16", "--bf16 --micro-batch-size 4", r"run.sh:17: "
         r"--micro-batch-size: expected it once, got 4 here and 2 in line 17"),
        ("--bf16 ", "", "--bf16: expected --bf16 or --fp16, got none"),
        ("--bf16", "--bf16 --use-torch-fsdp2", "it is not read"),
        ("--bf16", "--bf16 --normalization Own", "expected it once"),
        ("RMSNorm", "Own", "expected one of LayerNorm, RMSNorm, layernorm, rmsnorm, "
         "got 'Own'"),
        ("--group-query-attention --num-query-groups 4",
         "--group-query-attention --num-query-groups 3",
         "--num-query-groups: expected a divisor of the 8 attention heads"),
        ("--hidden-size 256 --num-attention-heads 8",
         "--hidden-size 256 --num-attention-heads 7",
         "--num-attention-heads: expected a divisor of --hidden-size 256"),
        ("--swiglu", "--swiglu --window-size 3",
         "--window-size: expected N,0, got '3'"),
        ("--swiglu", "--swiglu --num-experts 4 --moe-layer-freq [1]*3",
         "--moe-layer-freq: expected --num-layers 8 entries, got 3"),
        ("--swiglu", "--swiglu --num-experts 4 --moe-layer-freq nine",
         "--moe-layer-freq: expected a number or lists such as"),
        ("--swiglu", "--swiglu --hidden-dropout x",
         "--hidden-dropout: expected it once|expected a number"),
        ("--num-layers 8", "", "--num-layers: expected a value"),
        ("--num-layers", "--layers", "--layers: expected an argument that is"),
        # What would fill all memory.
        ("--num-layers 8", "--num-layers 1000000000000",
         "--num-layers: expected at most 10000, got 1000000000000"),
        ("--num-layers 8", f"--num-layers {'9' * 5000}",
         "--num-layers: expected an integer >= 1, got '999999999999…"),
        ("--swiglu", "--swiglu --num-experts 4 --moe-layer-freq "
         "[1]*99999+[1]*99999", "--moe-layer-freq: expected --num-layers 8"),
        ("--swiglu", "--swiglu --pipeline-model-parallel-layout "
         "'E((((t)*9999)*9999)*9999)*9999|L'",
         "-layout: expected at most 40000 characters with all repeats, got"),
        *(("--swiglu", f"--swiglu --pipeline-model-parallel-layout '{layout}'",
           "multiple of --pipeline-model-parallel-size")
          for layout in ("Ett|(ttt|)*1tt,t,L", "(Et|)*1(tt|)*3tL")),
        ("--swiglu", "--swiglu --pipeline-model-parallel-layout "
         "'Et*99999|L'", "-layout: expected at most 40000 layers, got more"),
    ],
)  # fmt: skip
def test_broken_scripts_are_refused(old, new, message):
    assert old in SCRIPT
    with pytest.raises(InvalidPlanError, match=message):
        launched(SCRIPT.replace(old, new, 1))


def test_which_program_starts_it_does_not_matter():
    text = SCRIPT.replace("srun python", "echo python")
    assert launched(text).reading.launch.tp == 2


ALONE = SCRIPT.replace("#SBATCH --nodes=2\n#SBATCH --gpus-per-node=8\n", "")


def started_by(starter, directives):
    text = ALONE.replace("srun", starter)
    return text.replace("\nTP=", f"\n{directives}\nTP=", 1)


@pytest.mark.parametrize(
    ("starter", "directives", "place"),
    [
        ("mpirun -np 8", "", "run.sh:14: -np 8"),
        ("mpirun --np=8", "", "run.sh:14: --np 8"),
        ("/opt/bin/mpiexec -n 8", "", "run.sh:14: -n 8"),
        ("mpirun -N 8", "", "run.sh:14: -N 8"),
        ("srun -n 8", "", "run.sh:14: -n 8"),
        ("srun -n8", "", "run.sh:14: -n 8"),
        ("srun --ntasks=8", "", "run.sh:14: --ntasks 8"),
        ("srun -G 8", "", "run.sh:14: -G 8"),
        ("srun", "#SBATCH --ntasks=8", "run.sh:2: --ntasks 8"),
        ("srun", "#SBATCH -n8", "run.sh:2: -n 8"),
        ("srun", "#SBATCH -J x -n 8 # all", "run.sh:2: -n 8"),
        ("srun", "#SBATCH --gpus=8", "run.sh:2: --gpus 8"),
        ("srun", "#SBATCH --gpus=h100:8", "run.sh:2: --gpus 8"),
        ("srun", "#SBATCH --gpus=8 --ntasks-per-node=4", "run.sh:2: --gpus 8"),
    ],
)
def test_totals_of_launchers_are_read(starter, directives, place):
    text = started_by(starter, directives)
    place = place if directives else place.replace("14", "15")
    assert launched(text, world=8).reading.launch.dp == 2
    expected = re.escape(f"{place}: expected the 16 devices of --cluster, got")
    with pytest.raises(InvalidPlanError, match=expected):
        launched(text)
    wide = text.replace("PP=2", "PP=8").replace("layers 8", "layers 16")
    with pytest.raises(InvalidPlanError, match=r"devices for 16 ranks of a"):
        launched(wide)


@pytest.mark.parametrize(
    ("starter", "directives", "message"),
    [
        ("srun -n 8", "#SBATCH --gpus=16", r"run.sh:15: -n 8: expected the 16 "
         r"devices of run.sh:2: --gpus 16, got 8; correct one of them"),
        ("torchrun --nproc_per_node 8", "#SBATCH --gpus=16",
         r"run.sh:2: --gpus 16: expected the 8 devices of run.sh:15: "
         r"--nproc_per_node 8, got 16"),
        ("mpirun -np 8", "#SBATCH --nodes=2 --gpus-per-node=8",
         r"run.sh:15: -np 8: expected the 16 devices of run.sh:2: "
         r"--gpus-per-node 8 and run.sh:2: --nodes 2, got 8"),
    ],
)  # fmt: skip
def test_numbers_of_devices_that_differ_are_refused(starter, directives, message):
    text = started_by(starter, directives)
    with pytest.raises(InvalidPlanError, match=message):
        launched(text)


@pytest.mark.parametrize(
    ("starter", "directives"),
    [
        ("mpirun -np 2 torchrun --nnodes 2 --nproc-per-node 8", ""),
        ("srun -n 2 python -m torch.distributed.run --nnodes 2 --nproc-per-node 8", ""),
        ("srun", "#SBATCH --nodes=2 --ntasks=2 --gpus-per-node=8"),
        ("srun", "#SBATCH --ntasks=16 --ntasks-per-node=8"),
        ("srun -n 2 $RUN", "#SBATCH --nodes=2 --gpus-per-node=8"),
        ("srun -n 16", "#SBATCH --ntasks=4"),
        ("mpirun -np $N", ""),
    ],
)  # fmt: skip
def test_tasks_that_start_nodes_are_no_ranks(starter, directives):
    text = started_by(starter, directives)
    assert launched(text).reading.launch.dp == 4


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        ("$V", "say it with --set V=VALUE"),
        ("$1", "say it with --set 1=VALUE"),
        ("$#", "write the value into the script"),
        ("${V%%b}", "write the value into the script"),
        ("${A[0]}", "write the value into the script"),
        ("$((2#101))", "write the value into the script"),
    ],
)
def test_remedies_for_what_is_unknown_work(value, remedy):
    text = SCRIPT.replace("--vocab-size 1024", f"--vocab-size {value}")
    with pytest.raises(InvalidPlanError, match=f"{re.escape(remedy)}$"):
        launched(text)
    given = re.search(r"--set (\w+)=", remedy)
    if given is not None:
        found = launched(text, variables={given[1]: "1024"}).reading
    else:
        found = launched(text.replace(value, "1024")).reading
    assert found.model.head.outputs == 1024


def test_what_is_said_beside_the_script_has_no_line():
    """It takes the place of what the script says, as a note tells."""
    launch = launched(overrides=[("tensor-model-parallel-size", "8")])
    assert launch.reading.launch.tp == 8
    note = "run.sh:14: --tensor-model-parallel-size 2: --say gives another"
    assert note in launch.notes
    with pytest.raises(InvalidPlanError, match=r"got 2 here and 1 in --say; "):
        launched(overrides=[("new", "1"), ("new", "2")])
    text = SCRIPT.replace("--tensor-model-parallel-size $TP", "")
    with pytest.raises(
        InvalidPlanError,
        match=r"ranks of a data rank \(run.sh: --tensor-model-parallel-size 32"
        r", run.sh:15: --pipeline",
    ):
        launched(text, overrides=[("tensor_model_parallel_size", "32")])


def test_arguments_in_place_of_others_are_no_defaults():
    text = SCRIPT.replace("--bf16", "--bf16 --recompute-activations")
    done = launched(text)
    assert done.reading.launch.recompute == "selective"
    assert "--recompute-granularity" not in " ".join(done.notes)
    assert "--recompute-granularity" in " ".join(launched().notes)


def test_variables_that_the_script_has_not_are_refused():
    with pytest.raises(
        InvalidOptionError,
        match=r"^--set FOO: expected a variable that run.sh uses, got none; "
        r"remove it$",
    ):
        launched(variables={"TP": "4", "FOO": "4"})


@pytest.mark.parametrize(
    ("name", "line"),
    [("tensor-model-parallel-size", 14), ("micro-batch-size", 17),
     ("use-distributed-optimizer", 18)],
)  # fmt: skip
def test_underscores_for_dashes_are_refused(name, line):
    """Megatron's parser knows no such arguments."""
    spelt = name.replace("-", "_")
    with pytest.raises(
        InvalidPlanError,
        match=f"^run.sh:{line}: --{spelt}: expected an argument with dashes, "
        f"got underscores; did you mean '--{name}'\\?$",
    ):
        launched(SCRIPT.replace(f"--{name}", f"--{spelt}"))


def test_arguments_of_others_may_have_underscores():
    text = SCRIPT.replace("--bf16", "--bf16 --local_rank 4")
    assert "does not read: --local_rank, --lr" in launched(text).notes[-1]


def test_scripts_without_a_launch_are_refused():
    with pytest.raises(InvalidPlanError, match=r"run.sh: expected a command"):
        launched("echo 4\n")


def test_commands_that_are_echoed_and_run_are_one():
    text = SCRIPT.replace("srun python", 'RUN="python').replace(
        "--train-iters 10", '--train-iters 10 &> log"\necho $RUN\neval $RUN'
    )
    text = text.replace('"${MODEL[@]}"', "${MODEL[*]}")
    assert launched(text).reading.launch.tp == 2


def test_several_launches_are_refused_with_their_lines():
    text = f"{SCRIPT}\npython a.py --num-layers 9\n"
    with pytest.raises(InvalidPlanError, match="got those of lines 16, 20"):
        launched(text)


def test_a_model_fills_in_the_shape():
    text = (
        "python x.py --seq-length 4096 --micro-batch-size 1 --global-batch-size 8 "
        "--bf16"
    )
    reading = launched(text, world=8, model=architecture("llama2-7b")).reading
    assert reading.model.layers == 32
    assert reading.launch.dp == 8


#: 3072 and 32 are the dimensions of Megatron-3.6b, 256 and 8 those of no model.
def without_vocabulary(more, hidden=256):
    heads = {256: 8, 3072: 32, 1280: 20}[hidden]
    layers = 36 if hidden == 1280 else 30
    return (
        f"python x.py --num-layers {layers} --seq-length 4096 --bf16 --hidden-size "
        f"{hidden} --num-attention-heads {heads} --micro-batch-size 1 "
        f"--global-batch-size 8 {more}"
    )


@pytest.mark.parametrize(
    ("more", "hidden", "vocabulary", "source"),
    [
        ("", 3072, 51200, "megatron-3.6b, which has this shape,"),
        ("--tokenizer-type HuggingFaceTokenizer", 3072, 51200,
         "megatron-3.6b, which has this shape,"),
        ("--tokenizer-type GPT2BPETokenizer", 3072, 50257,
         "the tokenizer GPT2BPETokenizer"),
        ("--tokenizer-type Llama2Tokenizer", 256, 32000,
         "the tokenizer Llama2Tokenizer"),
        ("--tokenizer-type HuggingFaceTokenizer --tokenizer-model llama3-8b", 256,
         128256, "the tokenizer llama3-8b"),
        ("--vocab-file d/gpt2-vocab.json", 256, 50257,
         "the tokenizer GPT2BPETokenizer"),
        ("--vocab-file $V --merge-file $M", 256, 50257,
         "the tokenizer GPT2BPETokenizer"),
    ],
)  # fmt: skip
def test_a_vocabulary_that_is_certain_is_taken(more, hidden, vocabulary, source):
    """It is that of the tokenizer, else of the only models with these dimensions."""
    read = launched(without_vocabulary(more, hidden), world=8)
    assert read.reading.model.towers[0].vocabulary == vocabulary
    assert read.reading.model.head.outputs == vocabulary
    assert read.notes[0] == (
        f"--vocab-size {vocabulary}, as {source} has it; --say vocab-size=N "
        f"gives another"
    )


@pytest.mark.parametrize(
    ("more", "hidden", "got"),
    [
        ("", 256, "none"),
        ("--vocab-file d/bpe-zh.json --merge-file d/bpe-zh.txt", 256, "none"),
        ("--tokenizer-type HuggingFaceTokenizer --tokenizer-model d/own", 256,
         "none, which HuggingFaceTokenizer does not say"),
        ("--tokenizer-type GPTSentencePieceTokenizer --vocab-file gpt2-vocab.json "
         "--merge-file gpt2-merges.txt", 256,
         "none, which GPTSentencePieceTokenizer does not say"),
        # The shape of gpt2-large, which has no SentencePiece.
        ("--tokenizer-type GPTSentencePieceTokenizer", 1280,
         "none, which GPTSentencePieceTokenizer does not say"),
        ("--tokenizer-type TikTokenizer", 3072, "none, which TikTokenizer does not "
         "say"),
    ],
)  # fmt: skip
def test_a_vocabulary_that_is_not_certain_is_asked_for(more, hidden, got):
    with pytest.raises(
        InvalidPlanError,
        match=rf"^run.sh: --vocab-size: expected the size of the vocabulary, "
        rf"got {got}; pass --say vocab-size=N$",
    ) as caught:
        launched(without_vocabulary(more, hidden), world=8)
    assert caught.value.answers == ("--say", "vocab-size=<VALUE>")
    overrides = [("vocab-size", "1024")]
    text = without_vocabulary(more, hidden)
    read = launched(text, world=8, overrides=overrides)
    assert read.reading.model.head.outputs == 1024


def test_models_with_equal_dimensions_and_other_vocabularies_say_none():
    """Mistral-7B has 32,000 tokens, Llama-3-8B 128,256.

    Mixtral-8x7B has these dimensions too, but experts, and 32,000 tokens.
    """
    text = (
        "python x.py --num-layers 32 --hidden-size 4096 --swiglu --bf16 "
        "--num-attention-heads 32 --ffn-hidden-size 14336 --seq-length 4096 "
        "--group-query-attention --num-query-groups 8 --micro-batch-size 1 "
        "--global-batch-size 8"
    )
    with pytest.raises(InvalidPlanError, match="--vocab-size: expected the size"):
        launched(text, world=8)
    read = launched(f"{text} --num-experts 8", world=8)
    assert read.reading.model.head.outputs == 32000
    assert "--vocab-size 32000, as mixtral-8x7b, which" in read.notes[0]


EXPERTS = (
    "python x.py --num-layers 8 --hidden-size 1024 --num-attention-heads 16 --swiglu "
    "--seq-length 1024 --micro-batch-size 1 --global-batch-size 64 --bf16 "
    "--vocab-size 32000 --tensor-model-parallel-size 2 --sequence-parallel "
    "--num-experts 16 --moe-router-topk 2 --moe-ffn-hidden-size 512 "
)


def test_whole_experts_are_spread_over_tensor_ranks_too():
    """Eight experts' ranks on 8 devices, of which 4 share data; also two copies."""
    for ep, ranks in ((8, 1), (4, 2)):
        text = (
            f"{EXPERTS} --expert-model-parallel-size {ep} "
            f"--expert-tensor-parallel-size 1 --use-distributed-optimizer"
        )
        strategy = launched(text, world=8).reading.launch.strategy
        assert strategy == Strategy(dp=4, tp=2, ep=ep, etp=1, zero=1)
        assert strategy.expert_ranks == ranks


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            "--expert-model-parallel-size 16 --expert-tensor-parallel-size 1",
            r"--expert-model-parallel-size: expected a divisor of data \* context \* "
            r"tensor parallel = 4 \* 1 \* 2, got 16",
        ),
        (
            "--expert-model-parallel-size 8",
            r"expected a divisor of data \* context parallel = 4 \* 1, got 8",
        ),
        (
            "--expert-model-parallel-size 2 --expert-tensor-parallel-size 4",
            "--expert-tensor-parallel-size: expected --tensor-model-parallel-size 2 "
            "or 1, got 4; plans cut experts over all tensor ranks or none",
        ),
        (
            "--expert-model-parallel-size 8 --expert-tensor-parallel-size 1 "
            "--use-distributed-optimizer --num-distributed-optimizer-instances 2",
            "a divisor of the 4 data ranks and of the 1 of experts, got 2",
        ),
    ],
)
def test_experts_that_ranks_cannot_hold_are_refused(arguments, text):
    with pytest.raises(InvalidPlanError, match=text):
        launched(f"{EXPERTS} {arguments}", world=8)


def test_arguments_are_named_as_a_script_sets_them():
    """Not where it computes with a variable, or has it in two arguments."""
    text = (
        "TP=2; MBS=1; PP=4\n# x.py --tensor-model-parallel-size $OLD\n"
        'x.py --tensor-model-parallel-size "${TP:-1}" '
        "--micro-batch-size=$MBS --global-batch-size $((8 * MBS)) "
        "--pipeline-model-parallel-size $PP --virtual ${PP} "
        "--save $DIR/$NAME"
    )
    lines = ["--micro-batch-size 2", "--pipeline-model-parallel-size 8"]
    kept = [*lines, "--bf16", "--save here"]
    assert in_variables(text, ["--tensor-model-parallel-size 4", *kept]) == [
        "TP=4",
        *kept,
    ]


def test_arguments_can_be_said_beside_the_script():
    text = SCRIPT.replace("--vocab-size 1024", "")
    reading = launched(text, overrides=[("vocab-size", "1024")]).reading
    assert reading.model.head.outputs == 1024


@pytest.mark.parametrize(
    ("extra", "layers", "virtual"),
    [
        ("--num-layers-per-virtual-pipeline-stage 2", [2, 2, 2, 2], 2),
        ("--num-virtual-stages-per-pipeline-rank 4", [1] * 8, 4),
        ("--decoder-first-pipeline-num-layers 3", [3, 5], 1),
        ("--decoder-last-pipeline-num-layers 3", [5, 3], 1),
    ],
)
def test_stages_are_read_in_every_form(extra, layers, virtual):
    text = SCRIPT.replace("--bf16", f"--bf16 {extra}")
    launch = launched(text).reading.launch
    assert [chunk.layers for chunk in launch.chunks] == layers
    assert launch.virtual_stages == virtual


# There and back

SITE = Site([(machine("dgx-h100"), 16)])


def blocks(problem, plan):
    verdict = score(problem, plan)
    memory = [block.memory for block in verdict.blocks]
    return verdict.step_quanta, memory


def read_back(problem, plan, launch, model, devices, **fields):
    """Build what was read; it must be the plan that was written."""
    found = build(launch, model, SITE, devices=devices, **fields)
    assert blocks(found.problem, found.plan) == blocks(problem, plan)
    return found


def through_megatron(problem, plan, settings, **fields):
    files = export(problem, plan, "megatron", settings)
    devices = read_hosts(files)
    launch, model, inside = read_launch(
        files["args.sh"], "args.sh", len(devices)
    ).reading
    fields["mesh_inside"] = inside
    return read_back(problem, plan, launch, model, devices, **fields)


def test_modules_of_predictions_are_read():
    """In front of the head, or where the layout says."""
    more = SCRIPT.replace("--bf16", "--bf16 --mtp-num-layers 2")
    reading = launched(more).reading
    assert reading.launch.chunks == (Chunk(True, 4, False), Chunk(False, 4, True, 2))
    (tower,) = reading.model.towers
    assert (tower.modules, reading.model.head.predictions) == (2, 3)
    assert reading.model.layers == 8
    layout = "--pipeline-model-parallel-layout 'Et*8mm|L'"
    laid = launched(more.replace("--bf16", f"--bf16 {layout}")).reading
    assert laid.launch.chunks == (Chunk(True, 8, False, 2), Chunk(False, 0, True))
    scaled = more.replace("--bf16", "--bf16 --mtp-loss-scaling-factor 0.3")
    assert launched(scaled).reading == reading
    assert "mtp" not in " ".join(launched(scaled).notes)
    none = SCRIPT.replace("--bf16", "--bf16 --mtp-num-layers 0")
    assert launched(none).reading == launched().reading


@pytest.mark.parametrize("modules", [1, 2])
def test_modules_of_predictions_there_and_back_score_the_same(modules):
    problem = for_target(small_problem(modules=modules), "megatron")
    settings = Settings(model=small_model(modules=modules))
    behind = 9 + modules
    strategy = Strategy(dp=2, tp=2, zero=1)
    for cuts in (
        (0, behind + 1),
        (0, 5, behind + 1),
        (0, 4, behind, behind + 1),
        (0, 5, 9, behind, behind + 1),
        (0, 3, 9, behind + 1),
    ):
        plan = cut_plan(problem, strategy, *cuts)
        for chunks in (1, 2):
            if chunks == 2 and len(plan.stages) != 4:
                continue
            plan = replace(plan, virtual_stages=chunks)
            found = through_megatron(problem, plan, settings)
            assert [stage.layers for stage in found.plan.stages] == [
                stage.layers for stage in plan.stages
            ]


@pytest.mark.parametrize(("experts", "etp"), [(0, None), (4, None), (4, (1,))])
@pytest.mark.parametrize("overlap", [(), ("tp", "weights", "gradients")])
def test_megatron_there_and_back_scores_the_same(experts, etp, overlap):
    problem = for_target(small_problem(experts, etp=etp), "megatron")
    settings = Settings(model=small_model(experts))
    for plan in uniform_plans(problem, every=499):
        for distributed in {False, plan.stages[0].strategy.zero < 2}:
            plan = replace(plan, overlap=overlap, distributed_optimizer=distributed)
            # All plans can be written: weights gather early together with gradients
            # only, tp with sequence parallelism only, and all of it is on here.
            shares = problem.job.overlap
            found = through_megatron(problem, plan, settings, overlap=shares)
            assert not found.notes


@pytest.mark.parametrize(("experts", "etp"), [(0, None), (4, None), (4, (1,))])
@pytest.mark.parametrize(
    "overlap", [(), ("gradients",), ("tp", "weights", "gradients")]
)
def test_torchtitan_there_and_back_scores_the_same(experts, etp, overlap):
    """An export says what of FSDP's own overlap the plan was priced with."""
    whole = with_job(small_problem(experts, etp=etp), selective_operators=True)
    problem = for_target(whole, "torchtitan")
    settings = Settings(model=small_model(experts), flavor="llama3/8B")
    done, recomputed = 0, set()
    for plain in uniform_plans(problem, every=97):
        plan = replace(plain, overlap=overlap)
        try:
            files = export(problem, plan, "torchtitan", settings)
        except InvalidPlanError:
            continue
        devices = read_hosts(files)
        launch, model, *_ = torchtitan.read_foreign(
            files["job.toml"], "job.toml", len(devices), model=settings.model
        )
        shares = problem.job.overlap
        read_back(problem, plan, launch, model, devices, overlap=shares)
        done += 1
        recomputed.add(launch.recompute)
    assert done > 10
    assert recomputed == {"none", "selective", "full"}


def titan_file(flavor="llama3/8B", **job):
    """Export a plan of two stages for torchtitan."""
    problem = for_target(small_problem(), "torchtitan")
    problem = replace(problem, job=replace(problem.job, **job))
    plan = small_plan(problem, Strategy(dp=4, zero=3), (4, 4))
    settings = Settings(model=small_model(), flavor=flavor)
    return export(problem, plan, "torchtitan", settings)["job.toml"]


def test_torchtitan_computes_in_no_16_bit_floats_but_bf16():
    with pytest.raises(
        InvalidPlanError, match="dtype: expected bf16 or fp8, got fp16; torcht"
    ):
        titan_file(dtype="fp16")


@pytest.mark.parametrize("flavor", ["8B", "llama3/8B\n[job]", "a/b/c"])
def test_torchtitan_refuses_what_is_no_flavor(flavor):
    with pytest.raises(
        InvalidOptionError,
        match=re.escape(f"such as llama3/8B, got {flavor!r}; correct it"),
    ):
        titan_file(flavor)


def test_what_fsdp_overlaps_is_read_from_a_known_comment_only():
    text, model = titan_file(), small_model()
    comment = "# FSDP overlaps in the plan: none\n"
    assert comment in text
    for changed, overlap in (
        (text, ()),
        (text.replace("none", "weights", 1), ("weights",)),
        (text.replace(comment, ""), ("weights", "gradients")),
    ):
        launch, _ = titan(changed, model=model)
        assert launch.overlap == overlap
    with pytest.raises(
        InvalidPlanError,
        match=r"^job.toml:2: FSDP overlaps in the plan: expected none or "
        r"weights, gradients, got 'all'; correct it, or remove the line$",
    ):
        titan(text.replace("none", "all", 1), model=model)


def test_deepspeed_there_and_back_scores_the_same():
    problem = for_target(small_problem(), "deepspeed")
    settings = Settings(model=small_model())
    done = 0
    for plan in uniform_plans(problem, every=17):
        files = export(problem, plan, "deepspeed", settings)
        devices = read_hosts(files)
        script = read_script(files["megatron-args.sh"], "args")
        launch, model, notes = deepspeed.read_launch(
            script, "args", len(devices), files.get
        )
        if notes:  # DeepSpeed shards the optimizer of a pipeline in bf16
            assert (launch.zero, launch.stages > 1) == (1, True)
            continue
        read_back(problem, plan, launch, model, devices)
        done += 1
    assert done > 10


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"stage": 1', '"stage": 0', r"^args:\d+: --zero-stage: expected 0 as "
         r"in ds.json, got 1; correct it$"),
        ('"zero_optimization"',
         '"tensor_parallel": {"autotp_size": 2}, "zero_optimization"',
         r"^ds.json: tensor_parallel.autotp_size: expected 1 as in args:\d+: "
         r"--tensor-model-parallel-size, got 2; correct it$"),
    ],
)  # fmt: skip
def test_script_and_configuration_that_differ_are_refused(old, new, message):
    """By what differs, not by a name that is read later."""
    problem = for_target(small_problem(), "deepspeed")
    plan = small_plan(problem, Strategy(dp=4, zero=1), (4, 4))
    files = export(problem, plan, "deepspeed", Settings(model=small_model()))
    script = read_script(files["megatron-args.sh"], "args")
    assert old in files["ds.json"]
    changed = {"ds.json": files["ds.json"].replace(old, new, 1)}
    with pytest.raises(InvalidPlanError, match=message):
        deepspeed.read_launch(script, "args", 8, changed.__getitem__)


def test_ranks_on_other_devices_are_no_plan():
    problem = small_problem()
    plan = small_plan(problem, Strategy(dp=4), (4, 4))
    launch = launch_of(problem, plan, placement_of(problem.graph))
    assert placed(launch, 16, range(8)) == launch
    with pytest.raises(InvalidPlanError, match="rank_map: expected ranks on"):
        placed(launch, 16, [1, 0, *range(2, 8)])


@pytest.mark.parametrize(
    ("zero", "more", "gathers"),
    [(1, ("gradients",), True), (1, (), False), (0, ("gradients",), False)],
)
def test_weights_gathered_early_are_exported_under_zero_1(zero, more, gathers):
    """With gradients only, as Megatron-LM takes them."""
    problem = for_target(small_problem(), "megatron")
    plan = small_plan(problem, Strategy(dp=4, zero=zero), overlap=("weights", *more))
    files = export(problem, plan, "megatron", Settings(model=small_model()))
    assert ("--overlap-param-gather" in files["args.sh"]) == gathers


def test_overlap_without_a_fraction_hides_what_is_calibrated():
    text = SCRIPT.replace("--bf16", "--bf16 --overlap-grad-reduce --tp-comm-overlap")
    launch, model, _ = launched(text).reading
    found = build(launch, model, SITE)
    stored = stored_calibration().software.overlap
    fractions = {name: stored[name] for name in ("tp", "gradients")}
    assert found.plan.overlap == ("tp", "gradients")
    assert found.problem.job.overlap == fractions
    assert found.notes == (
        f"overlap of tp, gradients: how much of it hides is not in the file, "
        f"so it is the stored calibration's, tp={stored['tp']},"
        f"gradients={stored['gradients']}; --overlap gives others",
    )
    some = build(launch, model, SITE, overlap_of(["gradients=0.9"]))
    assert some.plan.overlap == ("tp", "gradients")
    assert some.problem.job.overlap == {**fractions, "gradients": 0.9}
    (note,) = some.notes
    assert note.startswith("overlap of tp: how much of it hides is not in")
    both = build(launch, model, SITE, overlap_of(["gradients=0.9", "tp=1"]))
    assert not both.notes


@pytest.mark.parametrize("text", ["own=1", "tp", "tp=2", "tp=1,tp=1"])
def test_broken_overlaps_are_refused(text):
    with pytest.raises(InvalidOptionError, match="--overlap: expected one of"):
        overlap_of([text])


# torchtitan's older files, and other configurations of DeepSpeed

OLD = """
[model]
name = "llama3"
flavor = "8B"
[training]
batch_size = 8
seq_len = 4096
data_parallel_degree = 2
tensor_parallel_degree = 2
[experimental]
pipeline_parallel_degree = 2
pipeline_parallel_split_points = ["layers.12"]
pipeline_parallel_microbatches = 4
[activation_checkpoint]
mode = "full"
"""


def titan(text=OLD, world=8, **more):
    return torchtitan.read_foreign(text, "job.toml", world, **more)[:2]


def test_older_job_files_are_read():
    launch, model = titan()
    assert model.name == "llama3-8b"
    assert [chunk.layers for chunk in launch.chunks] == [12, 20]
    assert (launch.tp, launch.dp, launch.stages) == (2, 2, 2)
    # 8 samples per data rank in 4 micro-batches are 2 of 2 data ranks.
    assert (launch.samples, launch.micro_batches) == (2, 4)
    # With a pipeline weights stay gathered by default.
    assert (launch.zero, launch.recompute) == (2, "full")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("batch_size = 8", "batch_size = 8\nlocal_batch_size = 8",
         r"job.toml:6: training.batch_size: expected it or training.local_"),
        ('"layers.12"', '"layers.40"', "expected layers in order"),
        ("microbatches = 4", "microbatches = 3",
         "pipeline_parallel_microbatches: expected a divisor of the batch 8"),
        ('flavor = "8B"', 'flavor = "9B"',
         "model.flavor: expected a flavor that is known .* or --model, got"),
        ('mode = "full"', 'mode = "half"',
         r"job.toml:1\d: activation_checkpoint.mode: expected one of none"),
        ("seq_len = 4096", "seq_len = 0",
         "job.toml:7: training.seq_len: expected at least 1, got 0"),
        ("seq_len = 4096", "seq_len = 2147483648",
         "job.toml:7: training.seq_len: expected at most 2147483647, got 21"),
        ("seq_len = 4096", 'seq_len = "long"',
         r"job.toml:7: training.seq_len: expected an integer, got"),
        ("[experimental]\npipeline_parallel_degree = 2\n"
         'pipeline_parallel_split_points = ["layers.12"]',
         "[experimental]\npipeline_parallel_degree = 2",
         "module_fqns_per_model_part: expected the modules of every part"),
    ],
)  # fmt: skip
def test_broken_job_files_are_refused(old, new, message):
    assert old in OLD
    with pytest.raises(InvalidPlanError, match=message):
        titan(OLD.replace(old, new, 1))


NEW = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 8
[parallelism]
pipeline_parallel_degree = 4
[activation_checkpoint]
mode = "none"
"""


@pytest.mark.parametrize(
    ("more", "layers", "virtual"),
    [
        # 32 layers and 1 + 1 for the ends over 4: 9, 9, 8, 8 less the ends.
        ("", [8, 9, 8, 7], 1),
        # 32 + 0 + 3 = 35: 9, 9, 9, 8 less 3.
        ("pipeline_parallel_first_stage_less_layers = 0\n"
         "pipeline_parallel_last_stage_less_layers = 3\n", [9, 9, 9, 5], 1),
        # Two parts on a stage: 34 over 8 is 5, 5, 4, 4, 4, 4, 4, 4.
        ('pipeline_parallel_schedule = "Interleaved1F1B"\n',
         [4, 5, 4, 4, 4, 4, 4, 3], 2),
        # At most 3 of 34 in a part: 12 parts, 3 on a stage.
        ('pipeline_parallel_schedule = "Interleaved1F1B"\n'
         "pipeline_parallel_layers_per_stage = 3\n",
         [2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 2, 1], 3),
        ("pipeline_parallel_layers_per_stage = 9\n", [8, 9, 8, 7], 1),
    ],
)  # fmt: skip
def test_stages_without_modules_are_split_as_torchtitan_does(more, layers, virtual):
    text = NEW.replace("_degree = 4\n", f"_degree = 4\n{more}")
    launch, _ = titan(text)
    assert [chunk.layers for chunk in launch.chunks] == layers
    assert launch.chunks[0].embedding
    assert launch.chunks[-1].head
    assert launch.virtual_stages == virtual


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("pipeline_parallel_layers_per_stage = 8",
         r"job.toml:9: parallelism.pipeline_parallel_layers_per_stage: "
         r"expected a number that makes 1 part on each of 4 stages under "
         r"1F1B, got 5 parts of 8"),
        ("pipeline_parallel_layers_per_stage = 0", "got 0 parts of 0"),
        ('pipeline_parallel_schedule = "Interleaved1F1B"\n'
         "pipeline_parallel_layers_per_stage = 9",
         "makes 2 or more parts on each of 4 stages .* got 4 parts of 9"),
        ("pipeline_parallel_last_stage_less_layers = 12",
         r"pipeline_parallel_degree: expected stages for 32 layers, 1 for the "
         r"embedding and 12 for the head, got 4 parts"),
        ("pipeline_parallel_first_stage_less_layers = -1", "got 4 parts"),
    ],
)  # fmt: skip
def test_splits_that_torchtitan_refuses_are_refused(more, message):
    text = NEW.replace("_degree = 4\n", f"_degree = 4\n{more}\n")
    with pytest.raises(InvalidPlanError, match=message):
        titan(text)


def test_keys_can_be_said_beside_the_file():
    text = OLD.replace('mode = "full"', 'mode = "selective"')
    launch, _ = titan(text, overrides=[("activation_checkpoint.mode", "none")])
    assert launch.recompute == "none"
    with pytest.raises(InvalidPlanError, match=r"a\.b: expected a known key"):
        titan(text, overrides=[("a.b", "1")])


CONFIG = {
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 2,
    "zero_optimization": {"stage": 2, "overlap_comm": True},
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW"},
}


def speed(changes=None, world=8, **more):
    text = json.dumps({**CONFIG, **(changes or {})})
    model = architecture("llama2-7b")
    launch, _ = deepspeed.read_foreign(text, "ds.json", world, model, 4096, **more)
    return launch


def test_configurations_are_read():
    launch = speed()
    assert (launch.dp, launch.zero, launch.samples) == (8, 2, 2)
    assert launch.micro_batches == 4
    assert speed(degrees=(2, 1)).dp == 4
    assert speed({"zero_optimization": {"stage": 1}}, degrees=(1, 2)).stages == 2


@pytest.mark.parametrize(
    ("changes", "more", "message"),
    [
        ({"train_batch_size": "auto"}, {}, "train_batch_size: expected a value"
         ", got 'auto', which another program fills in"),
        ({"zero_optimization": {"stage": "auto"}}, {},
         "zero_optimization.stage: expected a value, got 'auto'"),
        ({"train_batch_size": 60}, {}, "train_batch_size: expected train_mic"),
        ({}, {"degrees": (3, 1)}, "--tp: expected tensor . pipeline parallel = 3 . 1"),
        ({}, {"degrees": (1, 3), "world": 24}, "--pp: expected a divisor of the 32"),
        ({}, {"degrees": (1, 2)}, "expected 0 or 1 with a pipeline, got 2"),
        ({"tensor_parallel": {"autotp_size": 2}}, {},
         "tensor_parallel.autotp_size: expected 1 as in --tp, got 2"),
        ({"sequence_parallel_size": 2}, {}, "sequence_parallel_size: expect"),
        ({"fp16": {"enabled": True}}, {}, "one of bf16 and fp16, got both"),
    ],
)  # fmt: skip
def test_broken_configurations_are_refused(changes, more, message):
    with pytest.raises(InvalidPlanError, match=message):
        speed(changes, **more)
