"""Profiles on disk: no number without its source."""

import dataclasses

import pytest

from loadtest.engine import profile
from loadtest.engine.profile import ProfileFileError, from_toml
from loadtest.fit.profile_file import Provenance, measured_of, save, sources_of, to_toml

TEXT = (profile.PROFILES / "instant.toml").read_text()


def test_every_shipped_number_says_where_it_comes_from():
    for name in profile.names():
        found = profile.load(name)
        parts = {"step", "request", "scheduler", "cache", "transfer"}
        numbers = {f"{part}.{field.name}" for part in parts for field in dataclasses.fields(getattr(found, part))}
        optional = {"step.attended_pair_s", "step.handover_s"}
        assert {"max_model_len", *numbers} - optional <= found.origins.keys() <= {"max_model_len", *numbers}
        assert all(len(origin.source) > 5 for origin in found.origins.values())


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('fixed_s = { value = 0.0, source = "chosen" }', "fixed_s = 0.0", "step.fixed_s has no source"),
        ('block_size = { value = 16, source = "chosen" }', "", "cache.block_size is missing"),
        ("[transfer]", "[transfer]\nspeed = 1", "transfer.speed is not a number of a profile"),
        ('handover_s = { value = 0.0, source = "chosen" }', 'handover_s = { value = -1, source = "chosen" }', "-1"),
        ('handover_s = { value = 0.0, source = "chosen" }', 'handover_s = { value = true, source = "chosen" }', "True"),
        ('value = 1e15, source = "chosen"', 'value = 1e15, source = "heard"', "'heard', which"),
        ("[sources]", '[sources]\nheard = "x"', "sources.heard is the source of no number"),
        ("[sources]", "[extra]\n[sources]", "extra is not part of a profile"),
        ("[request]", "[require]", "request is missing"),
        ('name = "instant"', "", "name is missing"),
        ("[step]", "[step", "is not TOML"),
    ],
)
def test_a_file_that_cannot_be_trusted_is_refused_in_one_line(old, new, said):
    assert old in TEXT
    with pytest.raises(ProfileFileError, match=r"^mine\.toml: [^\n]*$") as caught:
        from_toml(TEXT.replace(old, new, 1), "mine.toml")
    assert said in str(caught.value)


def test_what_is_written_is_read_back_with_errors_and_notes(tmp_path):
    path = tmp_path / "copy.toml"
    sources, of = sources_of(profile.PROFILES / "h100-llama3.1-8b.toml")
    found = profile.load("h100-llama3.1-8b")
    text = to_toml(found, Provenance(sources, of, "flags", {"step.fixed_s": 1.5e-4}), {"points": 3}, "a copy\nof it")
    save(path, text)
    again = profile.load(path)
    assert again == found
    assert again.origins["step.fixed_s"].error == 1.5e-4
    assert again.origins["step.fixed_s"].source == found.origins["step.fixed_s"].source
    assert measured_of(path) == {"points": 3}
    assert list(tmp_path.iterdir()) == [path]


def test_the_two_profiles_of_gpus_and_pods_and_the_instant_one_come_along():
    assert {"h100-llama3.1-8b", "cpu-tiny", "instant"} <= set(profile.names())
    with pytest.raises(FileNotFoundError, match="h100"):
        profile.load("no-such-gpu")
