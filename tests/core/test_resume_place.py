"""Where an option that resumes is put into a command line, and which one a command has itself."""

from __future__ import annotations

import shlex

import pytest

from watchdog_train.core.recovery.plans import own_resume_option, with_arguments
from watchdog_train.core.starting.command_line import script_words

ADDED = """
python train.py @
python train.py --lr 1 @
python3.11 -u -X dev train.py --lr 1 @
python train.py --lr 1 @ -- data.txt
python train.py fit @ -- --config a.yaml
python -m pkg.train @
python -um pkg.train --lr 1 @
python -c 'import train' --lr 1 @
python - --lr 1 @
./train.py --lr 1 @
env A=1 -u B python train.py @
A=1 python train.py @
nohup python train.py @
nice -n 5 nohup python train.py @ -- x
timeout -k 5 1h python train.py @
time stdbuf -oL python train.py @
taskset -c 0-3 python -m pkg.train @
numactl --cpunodebind=0 python train.py @
uv run train.py @
uv run --with torch -- python train.py @ -- data
uv run --with torch litgpt finetune @
poetry run python -m pkg.train @
poetry run train @ -- data.txt
pdm run train.py @
conda run -n torch --no-capture-output python train.py @
torchrun --nproc-per-node 2 --role r train.py @
torchrun --nproc-per-node=2 -m pkg.train --lr 1 @ -- data
torchrun --standalone --no-python ./train.py @
python -m torch.distributed.run --nproc-per-node 2 train.py @
accelerate launch --num_processes 2 train.py @ -- data
accelerate launch -m pkg.train @
python -m accelerate.commands.launch --cpu train.py @
uv run accelerate launch train.py @
deepspeed --num_gpus 2 train.py --deepspeed ds.json @
deepspeed --module pkg.train @
srun -n 2 --gpus=1 python train.py @
srun -n 2 torchrun --nproc-per-node 2 train.py @
mpirun -np 2 python train.py @
python -m cProfile -o out train.py @
python -m debugpy --listen 5678 train.py @
coverage run train.py @
py-spy record -o x.svg -- python train.py @
my-wrapper --flag python train.py @
yolo train model=a.pt @
tune run recipe --config a.yaml @
python train.py --launcher python @
bash run.sh --lr 1 @
./run.sh @
make train @
papermill in.ipynb out.ipynb @
python -m jupyter nbconvert --execute a.ipynb @
"""


@pytest.mark.parametrize("line", ADDED.strip().splitlines())
def test_an_option_is_added_to_the_arguments_of_the_script(line: str) -> None:
    words = shlex.split(line)
    at = words.index("@")
    before = tuple(word for word in words if word != "@")
    wanted = (*before[:at], "--resume", "P", *before[at:])
    assert with_arguments(before, "--resume {checkpoint}", "P") == wanted


RESUME, MODULE = "--resume {checkpoint}", "-m {checkpoint}"
REPLACED = [
    ("x", RESUME, "x --resume P"),
    ("x --resume old --lr 1", RESUME, "x --resume P --lr 1"),
    ("x --resume=old", RESUME, "x --resume=P"),
    ("x --resume old", "--resume={checkpoint}", "x --resume=P"),
    ("x --resume --lr 1", RESUME, "x --resume P --lr 1"),
    ("x ckpt=old", "ckpt={checkpoint} resume=true", "x ckpt=P resume=true"),
    ("x --mode train", "--mode resume --from {checkpoint}", "x --mode resume --from P"),
    ("x --flag", "--flag --load {checkpoint}", "x --flag --load P"),
    ("--resume", RESUME, "--resume --resume P"),
    ("python -m pkg.train", MODULE, "python -m pkg.train -m P"),
    ("python -m pkg.train -m old --lr 1", MODULE, "python -m pkg.train -m P --lr 1"),
    ("python -c code", MODULE, "python -c code -m P"),
    ("torchrun -m pkg.train", MODULE, "torchrun -m pkg.train -m P"),
    ("uv run -m pkg.train", MODULE, "uv run -m pkg.train -m P"),
    ("accelerate launch -m pkg.train -m old", MODULE, "accelerate launch -m pkg.train -m P"),
    ("python train.py -m old -- -m data", MODULE, "python train.py -m P -- -m data"),
]


@pytest.mark.parametrize(("line", "template", "expected"), REPLACED)
def test_an_option_of_the_script_is_replaced_or_added(
    line: str, template: str, expected: str
) -> None:
    """A path with spaces stays one argument: the template is split before the path is filled in."""
    path = "/a b/c"
    words = with_arguments(tuple(line.split()), template, path)
    assert [word.replace(path, "P") for word in words] == expected.split()


@pytest.mark.parametrize(
    "line",
    [
        'bash -c "python train.py"',
        "env A=1 sh -ec 'cd x; exec python train.py'",
        "srun -n 2 bash -lc 'python train.py | tee log'",
        "torchrun --no-python bash -c 'python train.py'",
        "uv run bash -c 'python train.py'",
    ],
)
def test_nothing_is_added_to_the_text_for_a_shell(line: str) -> None:
    words = tuple(shlex.split(line))
    assert script_words(words).receiver == "nobody"
    assert with_arguments(words, "--resume {checkpoint}", "P") == words


@pytest.mark.parametrize(
    ("line", "receiver"),
    [
        ("bash run.sh", "program"),
        ("sh -x run.sh a", "program"),
        ("./run.sh a", "program"),
        ("uv run papermill a b", "program"),
        ("make train", "program"),
        ("docker run image python train.py", "program"),
        ("python train.py", "script"),
        ("nohup yolo train", "script"),
    ],
)
def test_a_program_between_may_not_pass_an_option_on(line: str, receiver: str) -> None:
    assert script_words(line.split()).receiver == receiver


OWN = {
    "python train.py --resume auto": "--resume",
    "python train.py --resume": "--resume",
    "python train.py --resume True": "--resume",
    "python train.py --resume False": None,
    "python train.py --resume=false": None,
    "python train.py --resume no --lr 1": None,
    "python train.py --resume 0": None,
    "python train.py --resume=": None,
    "python train.py --resume --lr 0": "--resume",
    "python train.py --auto-resume": "--auto-resume",
    "python train.py trainer.resume=true": "trainer.resume",
    "python train.py --checkpoint_dir out": None,
    "python train.py --gradient_checkpointing": None,
    "python train.py resume": None,
    "python train.py fit --ckpt_path last": None,
    "python train.py -- --resume x": None,
    "python train.py trainer.resume=off": None,
    "conda run --resume x python train.py": None,
    "bash -c 'python train.py --resume auto | tee log'": "--resume",
    "bash -c 'python train.py --resume none'": None,
    "bash run.sh --resume auto": "--resume",
    "deepspeed --module pkg.train --resume auto": "--resume",
    "srun -m block python train.py --resume auto": "--resume",
    "python train.py --init_from=resume": "--init_from=resume",
    "python train.py --init_from scratch": None,
}


@pytest.mark.parametrize("line", OWN)
def test_the_option_by_which_a_command_resumes_by_itself(line: str) -> None:
    """A value that says no is no such option; neither is one of another program."""
    assert own_resume_option(shlex.split(line), "torch") == OWN[line]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("--ckpt_path last", "--ckpt_path"),
        ("ckpt_path=a.ckpt", "ckpt_path"),
        ("ckpt_path=null", None),
    ],
)
def test_an_option_of_lightning_may_name_where_to_save_elsewhere(words: str, found: str) -> None:
    line = ["python", "train.py", "fit", *words.split()]
    assert own_resume_option(line, "lightning") == found
    assert own_resume_option(line, "torch") is None
