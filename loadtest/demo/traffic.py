"""The demo's conversations: someone pastes a document, asks about it, and goes on asking.

Rule of this room: the same arguments give the same words, everywhere and always. Nothing is downloaded and nothing
is random but for a generator seeded with the conversation's number.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from loadtest.conversations import Script, UserTurn

DOCUMENT_WORDS = (120, 500, 1000, 1600)
"""Length of the pasted document; the simulated tokenizer makes about two tokens of a word."""
MAX_TOKENS = 120
START_GAP_S = 0.25
"""Between the first messages of two conversations: people do not all press the key in the same millisecond."""
THINK_S = (0.2, 0.6)
"""Shortest and longest pause before a follow-up: much shorter than a person's, so that the demo is short."""


@dataclass(frozen=True, slots=True)
class Topic:
    """What a conversation is about. `lines` are templates of the document, filled from `slots` and with {n}."""

    system: str
    opening: str
    lines: tuple[str, ...]
    slots: dict[str, tuple[str, ...]]
    follow_ups: tuple[str, ...]


TOPICS = (
    Topic(
        "You help the operators of a water works. Be brief and name the plant you talk about.",
        "Here is tonight's shift log. What should the morning shift look at first?",
        (
            "{n}: {plant} runs at {n} percent, {state}.",
            "{n}: {who} checked {plant} and found it {state}; next look in {n} minutes.",
            "{n}: alarm on {plant}, acknowledged by {who}, pressure back at {n} kilopascal.",
        ),
        {
            "plant": ("the north pump", "the sand filter", "the chlorine line", "the inlet screen", "the old tower"),
            "state": ("steady", "a little noisy", "hotter than yesterday", "leaking at the seal", "as expected"),
            "who": ("the day operator", "the night operator", "the fitter", "the shift lead"),
        },
        (
            "Which of these alarms came back more than once?",
            "Put the three most urgent points in a list for the notice board.",
            "Write a two line message to the fitter about the worst of them.",
            "Would you stop a pump tonight? Say yes or no and why.",
            "And what can wait until next week?",
            "Thanks. Give the log a title of at most eight words.",
            "One more thing: what should we measure more often from now on?",
        ),
    ),
    Topic(
        "You are the assistant of a software team. Answer from the notes only.",
        "These are the notes of our planning meeting. Summarise the decisions in five points.",
        (
            "{who} says that {part} is {state} and needs {n} more days.",
            "We agree to move {part} behind a flag; {who} owns it, review on day {n}.",
            "{who} asks whether {part} can be dropped. Nobody objects, but {n} customers use it.",
        ),
        {
            "who": ("the backend lead", "our designer", "the new tester", "the release manager", "support"),
            "part": ("the importer", "the login page", "the search index", "the billing job", "the mobile build"),
            "state": ("nearly done", "blocked by the database change", "slower than planned", "ready to test"),
        },
        (
            "Who has too much on the table?",
            "Make a table of owner, part and days left.",
            "What did we not decide that we should have?",
            "Draft the invitation for the follow-up meeting, three sentences.",
            "Which item would you cut if we lost two days?",
            "Turn your last answer into one sentence for the team channel.",
            "Is there anything in the notes that contradicts itself?",
        ),
    ),
    Topic(
        "You answer questions about support tickets of a small web shop. Be polite and exact.",
        "Here are last week's tickets in one block. What are people most unhappy about?",
        (
            "Ticket {n}: {who} writes that {item} arrived {state} and asks for {wish}.",
            "Ticket {n}: second mail from {who}; we promised {wish} within {n} hours.",
            "Ticket {n}: {item} is out of stock, {who} would take another colour or {wish}.",
        ),
        {
            "who": ("a customer from Leeds", "a returning customer", "a school", "a first time buyer"),
            "item": ("the blue lamp", "the desk chair", "a box of pens", "the folding table", "the gift card"),
            "state": ("too late", "with a scratch", "without the screws", "twice", "at the wrong address"),
            "wish": ("a refund", "a new one", "a call back", "a voucher"),
        },
        (
            "Answer the oldest one for me, friendly but short.",
            "How many of them are about delivery, roughly?",
            "Which product should we check in the warehouse today?",
            "Rewrite your reply so that it also offers a voucher.",
            "Translate the reply into plain English for a ten year old.",
            "What would you put on the help page so that fewer people write?",
            "List the tickets that we promised something for.",
        ),
    ),
    Topic(
        "You are a careful travel planner. Use only trains and ferries.",
        "I have copied every connection that I found. Which route would you take with two children?",
        (
            "The {kind} from {town} leaves at {n} past and reaches {other} after {n} minutes, {note}.",
            "From {town} to {other} there is a {kind} every {n} minutes, {note}.",
            "Change in {town}: {n} minutes for the {kind} to {other}, {note}.",
        ),
        {
            "kind": ("slow train", "express", "night train", "ferry", "tram"),
            "town": ("Bergen", "Kiel", "Gothenburg", "Esbjerg", "Turku"),
            "other": ("Oslo", "Hamburg", "Malmo", "Aarhus", "Tampere"),
            "note": ("seats must be booked", "bikes go free", "no food on board", "often late", "quiet in the week"),
        },
        (
            "How long are we on the way in all?",
            "Where would we sleep if we miss the ferry?",
            "Make it a day by day plan, one line a day.",
            "We have to be back by Sunday noon. Does that change anything?",
            "What should I book today and what can wait?",
            "Is there a way with one change less?",
            "Write it as a short message to the grandparents.",
        ),
    ),
)


def build(conversations: int, turns: int, document_words: tuple[int, ...] = DOCUMENT_WORDS) -> list[Script]:
    """So many conversations of so many turns. Topics and lengths take turns; no two documents are alike."""
    return [_script(number, turns, document_words) for number in range(conversations)]


def _script(number: int, turns: int, document_words: tuple[int, ...]) -> Script:
    topic = TOPICS[number % len(TOPICS)]
    dice = random.Random(number)
    document = _document(topic, document_words[number % len(document_words)], dice)
    said = [UserTurn(f"{topic.opening}\n\n{document}", MAX_TOKENS, number * START_GAP_S)]
    for position in range(turns - 1):
        text = topic.follow_ups[position % len(topic.follow_ups)]
        said.append(UserTurn(text, MAX_TOKENS, round(dice.uniform(*THINK_S), 3)))
    return Script(str(number + 1), topic.system, tuple(said))


def _document(topic: Topic, words: int, dice: random.Random) -> str:
    """Whole lines until there are at least `words` words."""
    lines: list[str] = []
    count = 0
    for line in _lines(topic, dice):
        if count >= words:
            break
        lines.append(line)
        count += len(line.split())
    return "\n".join(lines)


def _lines(topic: Topic, dice: random.Random) -> Iterator[str]:
    while True:
        line = dice.choice(topic.lines)
        while "{n}" in line:
            line = line.replace("{n}", str(dice.randint(3, 59)), 1)
        yield line.format(**{slot: dice.choice(values) for slot, values in topic.slots.items()})
