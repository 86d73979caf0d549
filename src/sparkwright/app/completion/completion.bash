
_sparkwright() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} command= count=0 index candidate
  if [[ $current == = ]]; then # bash splits --host=spark1 into three words
    current=
  elif [[ $previous == = ]]; then
    previous=${COMP_WORDS[COMP_CWORD-2]}
  fi
  for ((index = 1; index < COMP_CWORD; index++)); do
    if [[ ${COMP_WORDS[index]} != -* ]]; then
      if [[ -n $command ]]; then count=$((count + 1)); else command=${COMP_WORDS[index]}; fi
    fi
  done
  COMPREPLY=()
  while IFS= read -r candidate; do
    [[ $candidate == "$current"* ]] && COMPREPLY+=("$candidate")
  done < <(_sparkwright_candidates "$command" "$previous" "$current" "$count")
}

complete -o default -F _sparkwright sparkwright
