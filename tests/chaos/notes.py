"""A pytest plugin (-p notes): what the experiments measured, listed at the end."""
measured = []


def note(text):
    measured.append(text)


def pytest_terminal_summary(terminalreporter):
    if measured:
        terminalreporter.section("measured")
        for text in measured:
            terminalreporter.write_line(text)
