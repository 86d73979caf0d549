"""The `lint` and `explain` commands, which check a project without a host and explain the rules."""

from __future__ import annotations

from sparkwright.cli.framework.command import command
from sparkwright.errors import Exit


@command(
    help={
        "recipe": "only this recipe",
        "engine_version": "assume that the image has this version of vLLM; with --recipe, of that recipe's engine",
        "model": "assume this model instead of the lock's: a folder, a config.json, or a hub id",
        "for": "also check the requirements of this client: claude-code, codex, opencode, cline, continue, aider ...",
        "verbose": "list every recipe, including shipped ones without an error or a warning",
        "json": "one JSON object",
    }
)
def lint(
    recipe: str = "",
    engine_version: str = "",
    model: str = "",
    for_: str = "",
    verbose: bool = False,
    json: bool = False,
) -> list[Exit]:
    """Check recipes and the project's other files.

    Finds settings that the engine would refuse or ignore with the recipe's model or that slow it down, and the project's
    playbooks, parts and templates whose shipped originals have changed. Without --recipe, also checks hosts/, registries.yml
    and the project's own playbooks. Exit code 1 if a recipe has an error, 5 if a file is invalid or can't be read.
    """
    from sparkwright.app import findings
    from sparkwright.console.command_output import print_error

    checked_recipes, errors = findings.check_recipes(recipe, engine_version, model)
    if for_:
        checked_recipes = findings.add_client_findings(checked_recipes, for_)
    from sparkwright.app import playbook_files, project_errors
    from sparkwright.project import shipped_files
    from sparkwright.project.folder import Project

    root = Project.here().root
    other_errors = project_errors.find_file_errors(checked_recipe.recipe for checked_recipe in checked_recipes)
    other_errors += [] if recipe else project_errors.find_errors(root)
    for error in (*errors, *other_errors):
        print_error(error, json=json)
    shipped_files.refresh_schemas(root)
    if json:
        findings.print_json(checked_recipes, [] if recipe else playbook_files.list_outdated_files(root))
    else:
        if not recipe:
            playbook_files.print_outdated_files(root)
        findings.print_findings_text(
            checked_recipes,
            len(errors),
            len(other_errors),
            include_unremarkable=verbose or bool(recipe or engine_version or model or for_),
        )
    return [
        *(error.exit for error in (*errors, *other_errors)),
        *(Exit.FAILED for checked_recipe in checked_recipes if checked_recipe.settings.errors),
    ]


@command(word="rule", help={"rule": "a rule's name (default: list them)", "json": "one JSON object"})
def explain(rule: str | None = None, json: bool = False) -> None:
    """Explain a lint rule: reason, sources, an example."""
    from sparkwright.app import findings

    findings.explain(rule, as_json=json)


TASKS = {"": [lint, explain]}
