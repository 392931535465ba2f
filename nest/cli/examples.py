"""Two complete examples for the help of every command."""

from __future__ import annotations

import click

#: By the command: what can be typed as it stands, given the files it names.
EXAMPLES: dict[str, tuple[str, str]] = {
    "nest": (
        "nest compare --model llama3-70b --cluster h100x64",
        "nest solve llama2-7b-8 --solver dp -o plan.json",
    ),
    "nest audit": (
        "nest audit",
        "nest audit blindness --quick -o audit",
    ),
    "nest bench": (
        "nest bench quick --solvers dp,cpsat,alpa --jobs 2 -o run",
        "nest bench -o run --resume",
    ),
    "nest calibrate": (
        "nest calibrate --template -o runs.csv",
        "nest calibrate runs.csv -o my.calibration.json --next todo.csv",
    ),
    "nest certify": (
        "nest certify problem.json plan.json -o certificate.json",
        "nest certify problem.json -o infeasible.json",
    ),
    "nest check": (
        "nest check llama2-7b-8",
        "nest check llama2-7b-8 plan.json",
    ),
    "nest cite": (
        "nest cite",
        "nest cite alpa piper --bibtex",
    ),
    "nest codesign": (
        "nest codesign phaze.yaml --model bert-large --jobs 2 -o run",
        "nest codesign own.yaml --frontier --sensitivity --html page.html",
    ),
    "nest compare": (
        "nest compare llama2-7b-8 --solvers dp,milp,alpa",
        "nest compare --model llama3-8b --cluster h100x8 --json out.json",
    ),
    "nest completion": (
        "nest completion bash > ~/.nest-complete.bash",
        "nest completion fish > ~/.config/fish/completions/nest.fish",
    ),
    "nest conform": (
        "nest conform dp --time-limit 5",
        "nest conform my-planner.yaml --json report.json",
    ),
    "nest doctor": (
        "nest doctor",
        "nest doctor --json -",
    ),
    "nest explain": (
        "nest explain llama2-7b-8 plan.json",
        "nest explain llama2-7b-8 plan.json --prefer tp=4 --no-search",
    ),
    "nest export": (
        "nest export problem.json plan.json --to megatron -o launch",
        "nest export problem.json plan.json --to chakra -o traces",
    ),
    "nest fit": (
        "nest fit llama2-70b-64 --within 200",
        "nest fit --model llama2-7b --cluster h100x16 --days 30 --tokens 1e12",
    ),
    "nest import": (
        "nest import hf config.json --cluster h100x64 -o problem.json",
        "nest import megatron-args run.sh --cluster h100x64 -o problem.json",
    ),
    "nest import deepspeed": (
        "nest import deepspeed ds_config.json --cluster a100x16 \\\n"
        "  --model llama2-7b -o problem.json",
        "nest import deepspeed ds_config.json --cluster a100x16 \\\n"
        "  --model llama2-7b --plan plan.json -o problem.json",
    ),
    "nest import hf": (
        "nest import hf config.json --cluster h100x64 -o problem.json",
        "nest import hf config.json --cluster h100x64 --tp 1,2,4,8 -o -",
    ),
    "nest import megatron-args": (
        "nest import megatron-args run.sh --cluster h100x64 -o problem.json",
        "nest import megatron-args run.sh --cluster h100x64 \\\n"
        "  --plan plan.json --set NNODES=8 -o problem.json",
    ),
    "nest import nest-artifact": (
        "nest import nest-artifact input.json -o problem.json",
        "nest import nest-artifact input.json -o -",
    ),
    "nest import piper": (
        "nest import piper bert32.json -o problem.json",
        "nest import piper bert32.json --devices 64 \\\n"
        "  --memory-bytes 8589934592 -o problem.json",
    ),
    "nest import profile-csv": (
        "nest import profile-csv results --model llama2-7b \\\n"
        "  --device A100-80GB-SXM -o profile.json",
        "nest import profile-csv a.csv b.csv --model gpt3-1.3b \\\n"
        "  --device V100-16GB -o profile.json",
    ),
    "nest import torchtitan": (
        "nest import torchtitan train.toml --cluster h100x8 -o problem.json",
        "nest import torchtitan train.toml --cluster h100x8 \\\n"
        "  --plan plan.json -o problem.json",
    ),
    "nest instances": (
        "nest instances --class tight,moe",
        "nest instances --classes",
    ),
    "nest instances fetch": (
        "nest instances fetch gpt2-v100-16gbx4 --plans -o instance",
        "nest instances fetch tiny,tight -o instances",
    ),
    "nest instances show": (
        "nest instances show gpt2-v100-16gbx4",
        "nest instances show gpt2-v100-16gbx4 --json",
    ),
    "nest instances update": (
        "nest instances update out.json -o best.json",
        "nest instances update gpt2-v100-16gbx4 --plan plan.json \\\n"
        "  --by me -o best.json",
    ),
    "nest new": (
        "nest new cluster --machine h100 --devices 32 -o my.yaml",
        "nest new problem --model llama3-8b --cluster h100x8 -o p.json",
    ),
    "nest new cluster": (
        "nest new cluster --machine h100 --devices 32 -o my.yaml",
        "nest new cluster --machine h100 --devices 64 --node-size 4 \\\n"
        "  --network-gb-per-s 25 --price 2.5 -o my.yaml",
    ),
    "nest new problem": (
        "nest new problem --model llama3-8b --cluster h100x8 -o p.json",
        "nest new problem --model llama3-8b --cluster my.yaml \\\n"
        "  --global-batch 256 -o p.json",
    ),
    "nest pareto": (
        "nest pareto llama2-7b-8 --objectives time,memory --top 5",
        "nest pareto llama2-70b-64 --objectives time,devices -o plans",
    ),
    "nest problems": (
        "nest problems",
        "nest problems --model llama3-70b --cluster h100x64 -o problem.json",
    ),
    "nest profile": (
        "nest profile --model llama2-7b --tp 1,2,4 -o profile.json",
        "nest profile --model gpt2 --device cpu --dtype fp32 -o profile.json",
    ),
    "nest report": (
        "nest report --model llama3-70b --cluster h100x64",
        "nest report problem.json plan.json --tokens 15e12 --html plan.html",
    ),
    "nest schedule": (
        "nest schedule layer.json --cores tensor=8,vector=2",
        "nest schedule layer.json --cores tensor=2,vector=1 \\\n"
        "  --solver cpsat --json -",
    ),
    "nest score": (
        "nest score llama2-7b-8 plan.json",
        "nest score llama2-7b-8 plan.json --json score.json",
    ),
    "nest simulate": (
        "nest simulate llama2-7b-8 plan.json",
        "nest simulate llama2-7b-8 plan.json --json -",
    ),
    "nest solve": (
        "nest solve llama2-7b-8 --solver dp -o plan.json",
        "nest solve --model llama3-70b --cluster h100x64 --solver dp \\\n"
        "  --target megatron --launch",
    ),
    "nest solvers": (
        "nest solvers",
        "nest solvers --json -",
    ),
    "nest sweep": (
        "nest sweep grid.yaml -o run",
        "nest sweep grid.yaml --jobs 2 -o run --resume",
    ),
    "nest topology": (
        "nest topology show torus:4x4x4",
        "nest topology bench dgx:nodes=8",
    ),
    "nest topology bench": (
        "nest topology bench dgx:nodes=2",
        "nest topology bench torus:4x4x4 --ranks 4 --stride 16",
    ),
    "nest topology order": (
        "nest topology order problem.json plan.json",
        "nest topology order problem.json plan.json --rankfile ranks.txt \\\n"
        "  -o ordered.json",
    ),
    "nest topology price": (
        "nest topology price case.json",
        "nest topology price case.json --json -",
    ),
    "nest topology show": (
        "nest topology show leaf-spine:leaves=4,hosts=8",
        "nest topology show topology.conf --beside devices_per_node=8 \\\n"
        "  --plot network.svg",
    ),
    "nest trace": (
        "nest trace llama2-7b-8 plan.json -o trace.json",
        "nest trace llama2-7b-8 plan.json -o -",
    ),
    "nest validate": (
        "nest validate --hardware H100 --limit 20",
        "nest validate runs.csv --details errors.csv --json errors.json",
    ),
    "nest versions": (
        "nest versions",
        "nest versions > report.txt",
    ),
}


def add_examples(path: str, command: click.Command) -> None:
    """Show the examples of a command below its help."""
    if path in EXAMPLES:
        lines = "\n".join(EXAMPLES[path]).replace("\n", "\n  ")
        # Line by line, not filled.
        command.epilog = f"\b\nExamples:\n  {lines}"
