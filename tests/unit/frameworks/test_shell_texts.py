"""Texts that scripts write, print, or let another shell read."""

from __future__ import annotations

import pytest

from nest.errors import InvalidOptionError
from nest.frameworks.shell import read_script
from tests.unit.frameworks.test_faults import RUN, SHAPE
from tests.unit.frameworks.test_launch_scripts import launched, words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Other shells begin with the variables of the script, and keep none.
        ('X=1; bash -c "X=2; a $X \\$X"; a $X', [["bash", "-c", "a", "1", "2"],
                                                ["a", "1"]]),
        ("X=1; eval 'X=2; a $X'; a $X", [["a", "2"], ["a", "2"]]),
        ('srun -N 2 bash -xc "cd d && a b; c"',
         [["srun", "-N", "2", "bash", "-xc", one, *more]
          for one, *more in (["cd", "d"], ["a", "b"], ["c"])]),
        ("/bin/bash -e -o pipefail -c 'a b' 0", [["/bin/bash", "-e", "-o",
                                                 "pipefail", "-c", "a", "b"]]),
        ("X=1\nbash -s <<EOF\na $X \\$Y \"b c\" 'd'\nEOF", [
            ["bash", "-s", "a", "1", "", "b c", "d"]]),
        ("X=1\nbash <<'EOF'\nX=2; a $X\nEOF\na $X",
         [["bash", "a", "2"], ["a", "1"]]),
        ("ssh h <<-EOF\n\ta b\n\tEOF\nssh h 'c d; e'", [["a", "b"], ["c", "d"], ["e"]]),
        ("cat > f.sh <<'EOF'\na $X\nEOF\nX=1 bash ./f.sh", [["cat"],
                                                         ["bash", "a", "1"]]),
        ("echo 'X=3' > e; source ./e; a $X", [["echo", "X=3"], ["a", "3"]]),
        ("sbatch -N 2 --wrap 'a b'", [["a", "b"]]),
        ('echo bash -c "a b"', [["echo", "bash", "-c", "a b"]]),
        # What prints only what it is given.
        ("X=$(cat <<EOF\na\n  b\nEOF\n); c $X", [["c", "a", "b"]]),
        ("X=4; a $(expr $X / 2) $(echo b $X) `echo c`", [["a", "2", "b", "4", "c"]]),
        ("read -r -d '' X <<EOF\na b \\\n c\nEOF\n$X", [["a", "b", "c"]]),
        ('F="$(cat none)"; a $F', [["a", ""]]),
        # Functions of the script are known to texts that it evaluates.
        ("f() { a $1; }; eval 'f 2'; f 3", [["a", "2"], ["a", "3"]]),
    ],
)  # fmt: skip
def test_texts_are_read_as_the_shell_would(text, expected):
    assert words(text) == expected


def test_files_that_a_script_writes_are_known():
    text = (
        "X=4\ncat <<EOF > ./d.json\n{\"a\": $X, 'b': \\$X}\nEOF\n"
        "echo '{}' | tee e.json\necho c > f; echo d >> f 2> /dev/null\n"
    )
    files = read_script(text, "run.sh").files
    assert {name: word.text for name, word in files.items()} == {
        "d.json": "{\"a\": 4, 'b': $X}\n",
        "f": "c\nd",
    }


def test_options_of_a_queue_count_as_lines_of_the_script():
    script = read_script("sbatch -N 4 --gres=gpu:8 <<EOF\n#SBATCH -J x\na\nEOF", "s")
    texts = {name: word.text for name, word in script.directives.items()}
    assert texts == {"-N": "4", "--gres": "gpu:8", "-J": "x"}


@pytest.mark.parametrize(
    "text",
    ['X=\'eval "$X"\'; eval "$X"', "f() { bash -c f; }; f", "echo 'bash f' > f; . f"],
)
def test_texts_that_read_themselves_are_refused(text):
    with pytest.raises(InvalidOptionError, match="expected functions that end"):
        read_script(text, "run.sh")


@pytest.mark.parametrize(
    "text",
    [
        f'#SBATCH --nodes=1\nC="{SHAPE}"\necho $C\n'
        'srun bash -c "$LAUNCHER --node_rank \\$SLURM_PROCID $C" 2>&1 | tee -a log',
        f'A=({SHAPE})\nR="\ncd /m;\nexport P=/m;\n python /m/p.py ${{A[@]}}"\n'
        'sbatch <<EOF\n#SBATCH --gres=gpu:8\nsrun bash -x -c "${R}" | tee l\nEOF',
        f"read -r -d '' cmd <<EOF\necho begin \\\n&& python p.py {SHAPE}\nEOF\n"
        'srun -o log bash -c "${cmd}"',
        f'echo "starts: {RUN} {SHAPE} --lr 1"\n{RUN} {SHAPE}\n',
        f"printf '%s' \"{SHAPE}\"; eval {RUN} {SHAPE} '&>' log",
    ],
)
def test_launches_in_texts_are_read(text):
    assert launched(text, world=8).reading.launch.global_batch == 64
