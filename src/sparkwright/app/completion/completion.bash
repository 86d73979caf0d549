
_sparkwright() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} command= index candidate
  if [[ $current == = ]]; then # bash splits --host=spark1 into three words
    current=
  elif [[ $previous == = ]]; then
    previous=${COMP_WORDS[COMP_CWORD-2]}
  fi
  for ((index = 1; index < COMP_CWORD; index++)); do
    if [[ ${COMP_WORDS[index]} != -* ]]; then
      command=${COMP_WORDS[index]}
      break
    fi
  done
  COMPREPLY=()
  while IFS= read -r candidate; do
    [[ $candidate == "$current"* ]] && COMPREPLY+=("$candidate")
  done < <(shopt -u failglob; _sparkwright_candidates "$command" "$previous" "$current" 2>/dev/null)
}

complete -o default -F _sparkwright sparkwright
