# Completion of sparkwright. Names of hosts, recipes and playbooks are read from the project's files when Tab is pressed.

# Prints the project's folder: the current one or one above it.
_sparkwright_project() {
  local folder=$PWD
  while [ -n "$folder" ]; do
    if [ -d "$folder/hosts" ] && { [ -d "$folder/recipes" ] || [ -d "$folder/playbooks" ]; }; then
      printf '%s' "$folder"
      return
    fi
    folder=${folder%/*}
  done
}

# Prints the names of the .yml files in a folder of the project, except those that are invalid as names of hosts, recipes or playbooks.
# $1: the folder, or `FOLDER/*` for its subfolders.
_sparkwright_names() {
  local project file
  project=$(_sparkwright_project)
  [ -n "$project" ] || return
  for file in "$project"/$1/*.yml; do
    file=${file#"$project/${1%%/*}/"}
    file=${file%.yml}
    case $file in
    *[!A-Za-z0-9_./-]* | groups) ;;
    *) printf '%s\n' "$file" ;;
    esac
  done
}

_sparkwright_groups() {
  local groups
  groups=$(_sparkwright_project)/hosts/groups.yml
  [ -f "$groups" ] && sed -n 's/^\([A-Za-z0-9_][A-Za-z0-9_.-]*\):.*/\1/p' "$groups"
}

# $1: the kind of value. $2: the typed text, which for hosts may be a comma-separated list.
_sparkwright_values() {
  local list name
  case $1 in
  hosts)
    case $2 in
    *,*) list=${2%,*}, ;;
    *) list= ;;
    esac
    { _sparkwright_names hosts; _sparkwright_groups; printf 'all\n'; } | sort -u | while read -r name; do
      printf '%s\n' "$list$name"
    done
    ;;
  recipes) _sparkwright_names recipes; _sparkwright_names 'recipes/*' ;;
  playbooks) { _sparkwright_names playbooks; printf '%s\n' @PLAYBOOKS@; } | sort -u ;;
@VALUES@
  esac
}

# Prints the candidates at the cursor, one per line; none where a file or free text is expected.
# $1: the command, or empty. $2: the word before the cursor. $3: the typed text.
_sparkwright_candidates() {
  local flags value_kinds argument_kind kind
  case $1 in
  '')
    printf '%s\n' @NAMES@ --help --list --version
    return
    ;;
@COMMANDS@
  *) return ;;
  esac
  case $value_kinds in
  *" $2:"*)
    kind=${value_kinds#*" $2:"}
    _sparkwright_values "${kind%% *}" "$3"
    return
    ;;
  esac
  case $3 in
  -*) ;;
  *)
    if [ -n "$argument_kind" ]; then
      _sparkwright_values "$argument_kind" "$3"
      return
    fi
    ;;
  esac
  printf '%s\n' $flags --help
}
