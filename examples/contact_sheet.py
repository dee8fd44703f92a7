"""Look at what the built-in model makes of held-out prompts: one row of frames a prompt.

    python examples/contact_sheet.py docs/media/contact-sheet.png

Prints the prompts in the order of the rows: left column from top to bottom, then the right one.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import ostinato
from ostinato.media import Video
from ostinato.models.builtin.evaluation import held_out_prompts

FRAMES_SHOWN, STRIDE = 8, 9


def main() -> None:
    """Generate, print the prompts, write the sheet."""
    parser = argparse.ArgumentParser(description="A contact sheet of held-out prompts.")
    parser.add_argument("output", type=Path, help="PNG to write")
    parser.add_argument("--prompts", type=int, default=20, help="an even number of prompts")
    arguments = parser.parse_args()
    prompts = held_out_prompts(arguments.prompts)
    rows = []
    with ostinato.load("builtin") as model:
        for seed, prompt in enumerate(prompts):
            frames = model.generate(
                prompt, seed=seed, num_frames=FRAMES_SHOWN * STRIDE
            ).video.frames
            rows.append(np.concatenate(frames[::STRIDE], axis=1))
            print(f"{seed + 1:2d}  {prompt}")
    half = (len(rows) + 1) // 2
    columns = [np.concatenate(part) for part in (rows[:half], rows[half:])]
    sheet = np.concatenate(columns, axis=1)
    print(Video(frames=sheet[None], fps=1.0).save(arguments.output))


if __name__ == "__main__":
    main()
