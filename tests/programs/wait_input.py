"""Not a hang: waits for a person to answer a question on standard input."""

from __future__ import annotations

from zoo import Training, ready


def main() -> None:
    training = Training(0.05)
    training.train(20)
    ready()
    try:
        answer = input("go on? [y/n] ")
    except EOFError:
        answer = "no input"
    print(f"answer: {answer}", flush=True)
    training.train(40)
    training.finish()


if __name__ == "__main__":
    main()
