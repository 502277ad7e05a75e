"""Random models load in transformers, answer with varied tokens, appear whole; other names are explained."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from harness.errors import UsageError
from harness.models import ModelFolder, resolve
from harness.models.folder import _make
from harness.models.gpt2 import SHAPES, Shape, weights


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def tiny(cache: Path) -> ModelFolder:
    return resolve("random:gpt2-tiny", cache)


def test_what_is_known_of_a_random_model(tiny: ModelFolder) -> None:
    assert (tiny.name, tiny.served_name) == ("random:gpt2-tiny", "random-gpt2-tiny")
    assert (tiny.vocab_size, tiny.max_model_len, tiny.tokenizer) == (50_257, 1_024, True)


def test_sizes_are_gpt2s() -> None:
    def parameters(shape: Shape) -> int:
        layer = 12 * shape.width**2 + 13 * shape.width
        return (50_257 + 1_024 + 2) * shape.width + shape.layers * layer

    made = sum(tensor.size for _, tensor in weights(SHAPES["gpt2-tiny"]))
    assert made == parameters(SHAPES["gpt2-tiny"]) == 16_287_488
    assert parameters(SHAPES["gpt2"]) == 124_439_808
    assert parameters(SHAPES["gpt2-xl"]) == 1_557_611_200
    assert all(shape.width % shape.heads == 0 for shape in SHAPES.values())


def test_weights_are_the_same_every_time(tiny: ModelFolder) -> None:
    stored = load_file(tiny.path / "model.safetensors")
    again = dict(weights(SHAPES["gpt2-tiny"]))
    assert stored.keys() == again.keys()
    assert all(np.array_equal(stored[name], again[name]) for name in stored)
    how = json.loads((tiny.path / "config.json").read_text())["random_weights"]
    assert stored["transformer.wpe.weight"].std() == pytest.approx(how["position_std"], rel=0.01)
    assert stored["transformer.h.3.mlp.c_fc.weight"].std() == pytest.approx(how["matrix_std"], rel=0.01)


def test_transformers_loads_it_and_its_greedy_answers_vary(tiny: ModelFolder) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model, report = transformers.GPT2LMHeadModel.from_pretrained(tiny.path, output_loading_info=True)
    assert not any(report.values())
    prompts = torch.randint(0, 50_256, (4, 32), generator=torch.Generator().manual_seed(0))
    answers = model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        min_new_tokens=64,
        max_new_tokens=64,
        do_sample=False,
    )[:, 32:]
    assert all(len(set(answer)) >= 20 for answer in answers.tolist())
    assert len({tuple(answer) for answer in answers.tolist()}) == 4


def test_the_tokenizer_is_gpt2s(tiny: ModelFolder) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny.path)
    assert tokenizer("Hello world, it's 2024!").input_ids == [15496, 995, 11, 340, 338, 48609, 0]
    assert tokenizer("a<|endoftext|>b").input_ids == [64, 50256, 65]
    assert (len(tokenizer), tokenizer.eos_token_id, tokenizer.model_max_length) == (50_257, 50_256, 1_024)
    text = "naïve  \n\t日本語 🙂"
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_two_processes_make_it_at_once(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from harness.models import resolve; "
        "print(resolve('random:gpt2-tiny', Path(sys.argv[1])).path)"
    )
    both = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    folders = {process.communicate(timeout=60)[0].strip() for process in both}
    assert [process.returncode for process in both] == [0, 0]
    assert {str(path) for path in tmp_path.iterdir()} == folders and len(folders) == 1


def test_the_second_maker_keeps_the_first_folder(tmp_path: Path) -> None:
    small = Shape(layers=1, width=4, heads=1)
    folder = tmp_path / "made"
    _make(folder, small)
    before = (folder / "model.safetensors").stat().st_ino
    _make(folder, small)
    assert (folder / "model.safetensors").stat().st_ino == before
    assert list(tmp_path.iterdir()) == [folder]


def test_a_cache_that_cannot_be_written_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="could not make"):
        resolve("random:gpt2-tiny", tmp_path / "file")


def test_a_local_folder_is_used_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "llama"
    folder.mkdir()
    config = {"vocab_size": 49_152, "max_position_embeddings": 2_048}
    (folder / "config.json").write_text(json.dumps(config))
    found = resolve(str(folder))
    assert found == ModelFolder(folder, str(folder), "llama", 49_152, 2_048, tokenizer=False)
    (folder / "tokenizer.json").write_text("{}")
    assert resolve(str(folder)).tokenizer


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ("{}", "does not give"),
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        ('{"n_positions": 8}', "vocab"),
    ],
)
def test_a_folder_that_is_no_model_is_explained(tmp_path: Path, config: str, says: str) -> None:
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(UsageError, match=says):
        resolve(str(tmp_path))


def test_other_names_are_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no random model 'gpt5'") as caught:
        resolve("random:gpt5", tmp_path)
    assert "random:gpt2-tiny" in caught.value.mend
    with pytest.raises(UsageError, match=r"has no config\.json"):
        resolve(str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="huggingface_hub") as caught:
        resolve("somebody/some-model")
    assert "rosebench[hub]" in caught.value.mend
