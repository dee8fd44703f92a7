"""The card as a value: JSON, digest, derivation, lookups."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

import ostinato.card
from ostinato.card import ModelCard, ModelSource, PrecisionSpec
from ostinato.errors import BadInput, InvalidCard, UnknownField
from ostinato.tasks import TaskType
from ostinato.wire import digest
from support.mutations import Path, mutations
from support.sample_card import sample_card


def test_the_digest_changes_with_every_field() -> None:
    card = sample_card()
    digests = {path: digest(changed) for path, changed in mutations(card)}
    assert len(digests) > 100
    assert card.digest() not in digests.values()
    assert len(set(digests.values())) == len(digests)


def test_the_mutations_reach_every_field_of_every_part() -> None:
    """So the property above cannot miss a field that is added later."""
    reached = {path[i] for path, _ in mutations(sample_card()) for i in range(len(path))}
    for kind in vars(ostinato.card).values():
        if dataclasses.is_dataclass(kind) and kind is not ModelSource:
            assert {field.name for field in dataclasses.fields(kind)} <= reached, kind


def test_the_digest_does_not_depend_on_the_order_of_a_mapping() -> None:
    card = sample_card()
    loop = card.loops[0]
    turned = dataclasses.replace(loop, options=dict(reversed(list(loop.options.items()))))
    assert dataclasses.replace(card, loops=(turned,)).digest() == card.digest()


def test_round_trip() -> None:
    card = sample_card()
    again = ModelCard.from_json(card.to_json())
    assert again == card
    assert again.digest() == card.digest()
    assert again.to_json() == card.to_json()


def objects(node: object, path: Path = ()) -> Iterator[tuple[Path, dict[str, object]]]:
    if isinstance(node, dict):
        yield path, node
    for key, item in _items(node):
        yield from objects(item, (*path, str(key)))


def _items(node: object) -> list[tuple[object, object]]:
    if isinstance(node, dict):
        return list(node.items())
    return list(enumerate(node)) if isinstance(node, list) else []


MAPPINGS = ("binds", "options", "suites", "fast_batch_tolerances")


def test_an_unknown_field_is_refused_at_any_depth() -> None:
    places = [path for path, _ in objects(json.loads(sample_card().to_json()))]
    declared = [path for path in places if not path or path[-1] not in MAPPINGS]
    assert len(declared) == 18
    for path in declared:
        document = json.loads(sample_card().to_json())
        dict(objects(document))[path]["mispelt"] = 1
        with pytest.raises(UnknownField, match=r"\.".join([*path, "mispelt"])):
            ModelCard.from_json(json.dumps(document))


@pytest.mark.parametrize("wrong", [{"an": ["object"]}, ["a list of lists", []]], ids=repr)
def test_a_wrong_type_is_refused_at_any_depth(wrong: object) -> None:
    count = 0
    for path, node in objects(json.loads(sample_card().to_json())):
        for key in node:
            document = json.loads(sample_card().to_json())
            dict(objects(document))[path][key] = wrong
            with pytest.raises(BadInput):
                ModelCard.from_json(json.dumps(document))
            count += 1
    assert count > 80


def test_a_missing_field_is_refused() -> None:
    document = json.loads(sample_card().to_json())
    del document["recipe"]["method"]
    with pytest.raises(BadInput, match="method"):
        ModelCard.from_json(json.dumps(document))


def test_from_json_validates() -> None:
    document = json.loads(sample_card().to_json())
    document["model_id"] = ""
    with pytest.raises(InvalidCard, match="model_id is empty"):
        ModelCard.from_json(json.dumps(document))


def test_derive_records_the_parent() -> None:
    card = sample_card()
    variant = card.derive(model_id="variant", provenance="derived")
    assert variant.parent is not None
    assert variant.parent.model_id == card.model_id
    assert variant.parent.digest == card.digest()
    assert variant.model_id == "variant"
    assert variant.recipe == card.recipe
    assert variant.digest() != card.digest()
    grandchild = variant.derive(provenance="again")
    assert grandchild.parent is not None
    assert grandchild.parent.digest == variant.digest()


@pytest.mark.parametrize("name", ["modelid", "parent", "digest"])
def test_derive_refuses_what_is_no_field_of_its_own(name: str) -> None:
    with pytest.raises(UnknownField, match=f"{name}.*valid.*model_id"):
        sample_card().derive(**{name: "x"})


def test_derive_validates() -> None:
    with pytest.raises(InvalidCard, match="assumes precision 'float32'"):
        sample_card().derive(precision=PrecisionSpec(weights="bfloat16", latents="float32"))
    with pytest.raises(InvalidCard, match="Expected `str`"):
        sample_card().derive(family=3)


def test_lookups_say_what_is_valid() -> None:
    card = sample_card()
    assert card.component("codec").class_name == "SampleCodec"
    assert card.loop("rollout").loop == "sample.loop:Rollout"
    assert card.program(TaskType.TEXT_TO_VIDEO).program == "sample.program:video"
    lookups: list[tuple[Callable[[], object], str]] = [
        (lambda: card.component("vae"), "transformer.*codec"),
        (lambda: card.loop("denoise"), "rollout"),
        (lambda: card.program(TaskType.TEXT_TO_IMAGE), "text_to_video"),
    ]
    for look_up, valid in lookups:
        with pytest.raises(InvalidCard, match=valid):
            look_up()


def test_the_contracts_import_nothing_heavy() -> None:
    code = (
        "import sys, ostinato.card, ostinato.request, ostinato.work\n"
        "heavy = {'torch', 'numpy', 'pydantic', 'fastapi', 'diffusers', 'transformers'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
