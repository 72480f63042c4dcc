"""One cache per tenant: a salt of its own for each key, on all legs of all turns."""

from __future__ import annotations

from tests.net.readback_world import Talk, asked, last, moving, reading
from tests.net.world import LONG, World

KEYS = ("sk-secret-of-anna", "sk-secret-of-bert")


def salts(w: World) -> list[str]:
    return [r.body["cache_salt"] for pod in [*w.prefill, *w.decode] for r in pod.requests if "messages" in r.body]


async def test_two_keys_have_two_caches_and_one_key_has_one() -> None:
    async with reading(decode=1, isolate_tenants=True, p={"scale_out": True}) as w:
        talks = [Talk(w, headers={"Authorization": f"Bearer {key}"}) for key in KEYS]
        found = []
        for talk in talks:
            for pod in (*w.prefill, *w.decode):
                pod.state.journal.records.clear()
            await talk.say(LONG)
            assert (last(w).route, last(w).turn) == ("pd", 1)
            assert last(w).prefill_cached_tokens == 0, "what the other has cached is not this one's"
            await talk.say("Go on.")
            assert (last(w).route, last(w).turn) == ("local", 2)
            assert len(set(salts(w))) == 1, "the same on both legs and all turns"
            assert len(salts(w)) == 3
            found.append(salts(w)[0])
            sent = b"".join(r.raw for pod in (*w.prefill, *w.decode) for r in pod.requests)
            assert not any(key.encode() in sent for key in KEYS)
        assert found[0] != found[1]
        assert all(len(salt) == 64 and set(salt) <= set("0123456789abcdef") for salt in found)
        assert len({record.conversation for record in w.watcher.records}) == 2


async def test_a_clients_own_salt_still_separates_and_does_not_leave() -> None:
    async with reading(decode=1, isolate_tenants=True) as w:
        header = {"Authorization": f"Bearer {KEYS[0]}"}
        talks = [Talk(w, headers=header, more=more) for more in ({}, {"cache_salt": "own"}, {"cache_salt": "other"})]
        for talk in talks:
            await talk.say(LONG)
            assert last(w).prefill_cached_tokens == 0
        assert len(set(salts(w))) == 3
        assert not {"own", "other"} & set(salts(w))
        again = Talk(w, headers=header, more={"cache_salt": "own"})
        await again.say(LONG)
        assert (last(w).prefill_cached_tokens or 0) > 50
        assert len(set(salts(w))) == 3


async def test_a_readback_stays_in_its_tenants_cache() -> None:
    async with reading(isolate_tenants=True) as w:
        talk = Talk(w, headers={"Authorization": f"Bearer {KEYS[0]}"})
        holder = await moving(w, talk)
        await talk.say("Go on.")
        assert last(w).route == "readback"
        assert asked(holder).body["cache_salt"] == asked(w.prefill[0]).body["cache_salt"]
        assert (asked(holder).cached_tokens or 0) > 200


async def test_without_isolation_nobody_is_given_a_salt() -> None:
    async with reading(decode=1) as w:
        for key in KEYS:
            await Talk(w, headers={"Authorization": f"Bearer {key}"}).say(LONG)
        assert (last(w).prefill_cached_tokens or 0) > 50, "a prefix is shared by all"
        assert not any("cache_salt" in r.body for pod in (*w.prefill, *w.decode) for r in pod.requests)
