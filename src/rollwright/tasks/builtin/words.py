"""Common five-letter words: what the word game may hide, and what other sets make texts from."""

from __future__ import annotations

ANSWERS: tuple[str, ...] = tuple(
    """
    about above actor adult agent alarm album alert alive amber angel anger ankle apple apron arena aside attic award
    bacon badge baker basil basin beach beard berry birch black blade blaze bloom board bonus brain brave bread brick
    bride brief bring brook brush cabin cable camel candy canoe cargo carry chain chair chalk charm chess chest chief
    child choir cider cliff clock cloud clown coach coast coral couch crane cream creek crown crust curve daisy dance
    depth diary diver dough draft dream dress drift drink eagle early earth elbow empty enjoy entry equal event every
    exact extra fable faith fancy feast fence fiber field flame fleet flock flour flute focus frame fresh frost
    fruit ghost giant glass globe glove grace grain grape grass green group guard guess guest guide habit happy heart
    heavy hobby honey horse hotel house human humor ideal image index ivory jelly jewel judge juice kayak knife knock
    label ladle large laser laugh layer lemon level light linen llama local lucky lunar lunch magic maple march medal
    melon mercy metal minor money month motor mount mouse mouth movie music night noble noise north novel nurse ocean
    olive onion opera orbit order organ other otter paint panda paper party pasta patch peace peach pearl phone photo
    piano pilot pizza plane plant plate point porch power press price pride prize proud queen quick quiet quilt radio
    ranch raven ready reply rider river roast robin robot rough round royal salad sauce scale scarf scene scout shade
    shape share sharp sheep shelf shell shirt shore short skate skill sleep slice smile smoke snack snake solar solid
    sound south space spark spice spoon sport squad stamp stand stark steam steel stone storm story sugar swamp sweet
    swift table teach thank theme thick thorn tiger toast torch tower track trade trail train treat trunk trust tulip
    uncle under union unity upper urban value video villa visit vivid voice wagon waist watch water whale wheat wheel
    white whole wider woman world worth wrist yacht young youth zebra
    """.split()  # noqa: SIM905  A list literal would put one word on a line.
)
