"""Drawn conversations of two people over months, with questions whose evidence is one turn.

Both people name the same topics, some of them twice in other months. Half of the evidence is an answer whose topic
only the turn before names. Three of four questions share words with the evidence or with the turn before, the others
say the same in other words. Nothing of the search is tuned to these sentences.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random

PEOPLE = ("Ines", "Tobias", "Marguerite", "Kwame", "Yuki", "Declan", "Farah", "Bruno")

# opening, answer in full, answer to the opening, questions to each of the answers and in other words, values
TOPICS: tuple[tuple[str, str, str, tuple[str, str, str], tuple[str, ...]], ...] = (
    ("How is your evening course going?", "I signed up for {x} classes on Tuesdays.", "Mostly {x}, it calms me down.",
     ("When did {who} sign up for classes?", "What does {who} do on Tuesdays?",
      "Which craft did {who} start to learn?"), ("pottery", "woodworking", "calligraphy", "weaving")),
    ("Did you take that trip?", "We drove up to {x} and slept in a tent.", "Yes! {x} was even greener than on photos.",
     ("Where did {who} sleep in a tent?", "Which trip did {who} take by car?",
      "Where did {who} travel for a holiday?"), ("Lake Bled", "the Pyrenees", "Skye", "Tuscany")),
    ("Any news from the job hunt?", "I accepted an offer from a {x} company.", "They took me, it is a {x} firm.",
     ("What company gave {who} an offer?", "Where does the new job of {who} take place?",
      "In what industry is the new position of {who}?"), ("solar energy", "shipping", "video game", "insurance")),
    ("How is your family?", "My sister had a baby, they named her {x}.", "All well, and little {x} sleeps through.",
     ("What did the sister of {who} name her baby?", "How is the baby in the family of {who} called?",
      "What is the name of the niece of {who}?"), ("Clementine", "Aurora", "Zofia", "Leonie")),
    ("What are you reading?", "I cannot put down {x}, I read it on the train.", "Still {x}, two chapters to go.",
     ("What did {who} read on the train?", "Which novel is {who} reading?",
      "Which book has {who} been enjoying?"), ("Middlemarch", "Dune", "The Leopard", "Beloved")),
    ("Did you see a doctor?", "The doctor says my {x} needs six weeks of rest.", "It is the {x} again, nothing broken.",
     ("What did the doctor tell {who} to rest?", "For what did {who} go to the doctor?",
      "Which body part did {who} injure?"), ("left knee", "shoulder", "wrist", "ankle")),
    ("Is there a new pet at your place?", "We adopted a {x} from the shelter.", "Our {x} chews on every shoe.",
     ("What did {who} adopt from the shelter?", "Which pet lives with {who}?",
      "What kind of animal does {who} own?"), ("greyhound", "tortoise", "parrot", "ferret")),
    ("What did you cook for the guests?", "I made {x} for eleven guests.", "A big pot of {x}, nothing was left.",
     ("What did {who} cook for eleven guests?", "Which dish did the guests of {who} eat?",
      "What meal did {who} prepare at the dinner party?"), ("mushroom risotto", "lamb tagine", "ramen", "paella")),
    ("Do you still play music?", "I bought a {x} and practise daily.", "The {x}, though my neighbours suffer.",
     ("What does {who} practise daily?", "Which music does {who} play?",
      "Which instrument is {who} practising?"), ("cello", "trumpet", "accordion", "banjo")),
    ("How was the race?", "I finished the {x} in the rain.", "The {x} nearly broke me, but I got the medal.",
     ("What did {who} finish in the rain?", "For which race did {who} get a medal?",
      "Which sports competition did {who} complete?"), ("half marathon", "triathlon", "regatta", "relay")),
    ("Did the flat work out?", "We found a flat in the {x} quarter, third floor.", "We move to the {x} side in spring.",
     ("In which quarter did {who} find a flat?", "Where is the flat of {who}?",
      "In which neighbourhood will {who} live?"), ("harbour", "cathedral", "university", "market")),
    ("Are you volunteering again?", "On Sundays I help at the {x}.", "Yes, the {x} needs every hand this winter.",
     ("Where does {who} help on Sundays?", "Where is {who} volunteering?",
      "For which charity does {who} work without pay?"), ("food bank", "seal rescue", "night shelter", "repair cafe")),
    ("Which film did you see?", "We watched {x} in the open-air cinema.", "It was {x}, I cried at the end.",
     ("What did {who} watch in the open-air cinema?", "Which film made {who} cry?",
      "What movie did {who} go to?"), ("Casablanca", "Paprika", "Amarcord", "Fargo")),
    ("What grows in your garden?", "I planted {x} along the fence.", "Only the {x} survived the frost.",
     ("What did {who} plant along the fence?", "What grows in the garden of {who}?",
      "Which plants does {who} cultivate?"), ("dahlias", "rhubarb", "artichokes", "peonies")),
    ("What broke this time?", "The {x} died on Monday and I repaired it myself.", "Our {x}, it leaked over the floor.",
     ("What did {who} repair when it died on Monday?", "What broke at the home of {who}?",
      "Which household appliance had a defect at the home of {who}?"), ("dishwasher", "boiler", "oven", "freezer")),
    ("Did you choose a gift for your mother?", "I gave my mother a {x} for her birthday.", "A {x}, she wears it daily.",
     ("What did {who} give to a mother for her birthday?", "Which gift did {who} choose?",
      "What present did the mother of {who} receive?"), ("silk scarf", "brooch", "raincoat", "straw hat")),
)  # fmt: skip

SMALL_TALK = (
    "Good to hear from you!", "I have been so busy lately.", "That sounds wonderful, tell me more.", "Haha, typical!",
    "The weather here has been awful all week.", "I slept badly, the street was loud.", "Let us meet soon.",
    "My phone battery is almost empty.", "I agree, people should rest more.", "Thanks, that means a lot to me.",
    "I was thinking of you this morning.", "Work was long today, so many meetings.", "You always find the right words.",
    "The bus was late again.", "I need a coffee first.", "We should celebrate that properly.",
    "How do you find the time for all this?", "My neighbour says the same.", "I took a long walk after lunch.",
)  # fmt: skip


@dataclass(frozen=True)
class Turn:
    """A turn of a conversation."""

    speaker: str
    text: str
    session: str
    at: datetime


@dataclass(frozen=True)
class Conversation:
    """Turns in order, and questions with the index of the turn that answers each."""

    turns: tuple[Turn, ...]
    questions: tuple[tuple[str, int], ...]


def conversation(seed: int, *, sessions: int = 16, small_talk: int = 14) -> Conversation:
    """Draw a conversation: each person names each topic once, and of a third of them again in a later month."""
    draw = Random(seed)
    people = draw.sample(PEOPLE, 2)
    told: list[list[tuple[str, int, str, bool]]] = [[] for _ in range(sessions)]
    for place, topic in enumerate(TOPICS):
        for who in people:
            values = draw.sample(topic[4], 2)
            first = draw.randrange(sessions)
            told[first].append((who, place, values[0], False))
            if draw.random() < 1 / 3 and first + 6 < sessions:
                told[draw.randrange(first + 6, sessions)].append((who, place, values[1], True))
    turns: list[Turn] = []
    asked: list[tuple[str, int]] = []
    day = datetime(2023, 1, 9, 18, tzinfo=UTC)
    repeated = {(who, place) for session in told for who, place, _, is_again in session if is_again}
    for number, facts in enumerate(told):
        day += timedelta(days=draw.randrange(8, 19))
        blocks: list[tuple[tuple[str, str, str | None], ...]] = []
        for who, place, value, _ in facts:
            (other,) = {*people} - {who}
            opening, long, short, questions, _ = TOPICS[place]
            month = f" in {day:%B}" if (who, place) in repeated else ""
            is_short = draw.random() < 0.5
            question = questions[2] if draw.random() < 1 / 4 else questions[is_short]
            told_text = (short if is_short else long).format(x=value)
            opener = opening if is_short else f"{who}, what is new?"
            blocks.append(((other, opener, None), (who, told_text, question.format(who=who).replace("?", f"{month}?"))))
        blocks += [((draw.choice(people), draw.choice(SMALL_TALK), None),) for _ in range(small_talk)]
        draw.shuffle(blocks)
        for speaker, text, question_of in (line for block in blocks for line in block):
            if question_of is not None:
                asked.append((question_of, len(turns)))
            moment = day + timedelta(minutes=len(turns))
            turns.append(Turn(speaker, text, f"session {number + 1}", moment))
    return Conversation(tuple(turns), tuple(asked))
