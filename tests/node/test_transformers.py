"""Models of the transformers library: trained here, exported, and loaded by that library as its own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.node.conftest import Run
from zdiloco.node.learner import LearnerNode
from zdiloco.rundir.export import Wanted, export
from zdiloco.tensor.binding import Binding

pytestmark = [pytest.mark.net, pytest.mark.slow]  # the library alone takes seconds to load
VOCABULARY = 64
MOST_STEPS = 2000


def config_of(kind: str) -> Any:
    """The settings of a model of some thousand parameters, whose head is tied to its embedding."""
    import transformers

    transformers.utils.logging.disable_progress_bar()  # it has a thread of its own, which never ends
    if kind == "gpt2":
        return transformers.GPT2Config(
            vocab_size=VOCABULARY, n_positions=32, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
        )
    return transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=32, tie_word_embeddings=True, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip


def train(run: Run, model: Any) -> None:
    """Two rounds of every fragment, by one learner on this thread; then the syncer saves and ends."""
    syncer = run.start_syncer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with LearnerNode(model, optimizer, run.config, name="a") as node:
        for _ in range(MOST_STEPS):
            tokens = torch.randint(0, VOCABULARY, (2, 8))
            optimizer.zero_grad()
            model(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
            node.step(tokens.numel())
            if min(state.stamp.version for state in syncer.body.states.values()) >= 2:
                break
    run.stop_syncer()


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_it_loads_as_a_model_of_the_library(run_of: Callable[..., Run], tmp_path: Path, kind: str) -> None:
    """The same logits, bit for bit, as a model that holds the syncer's values; and the head is tied again."""
    import transformers

    config = config_of(kind)
    model = transformers.AutoModelForCausalLM.from_config(config)
    run = run_of()
    train(run, model)
    states = run.syncer.body.states if run.syncer else {}
    assert min(state.stamp.version for state in states.values()) >= 2
    layout = run.syncer.body.layout if run.syncer else None
    assert layout is not None
    assert layout.ties
    folder = tmp_path / "exported"
    folder.mkdir()
    config.save_pretrained(folder)
    export(run.config.run.path, folder / "model.safetensors", Wanted())
    loaded, told = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(told[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    binding = Binding(model, layout)
    for index, state in states.items():
        binding.load_(index, state.theta)
    tokens = torch.randint(0, VOCABULARY, (3, 8))
    with torch.no_grad():
        assert torch.equal(loaded.eval()(tokens).logits, model.eval()(tokens).logits)
    assert loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight
