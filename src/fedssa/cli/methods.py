"""methods."""

from fedssa.cli.common import app, first_line, print_list


@app.command()
def methods() -> None:
    """List the methods and presets."""
    from fedssa.methods import METHODS, PRESETS

    fixed = {n: ", ".join(f"{k} = {v}" for k, v in settings.items()) for n, (_, settings) in PRESETS.items()}
    presets = {name: f"{cls.__name__} with {fixed[name]}" for name, (cls, _) in PRESETS.items()}
    print_list({name: first_line(cls) for name, cls in METHODS.items()} | presets)
