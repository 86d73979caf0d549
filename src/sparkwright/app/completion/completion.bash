
_sparkwright() {
  local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command= count=0 at candidate
  if [[ $current == = ]]; then # bash splits --host=spark1 into three words
    current=
  elif [[ $before == = ]]; then
    before=${COMP_WORDS[COMP_CWORD-2]}
  fi
  for ((at = 1; at < COMP_CWORD; at++)); do
    if [[ ${COMP_WORDS[at]} != -* ]]; then
      if [[ -n $command ]]; then count=$((count + 1)); else command=${COMP_WORDS[at]}; fi
    fi
  done
  COMPREPLY=()
  while IFS= read -r candidate; do
    [[ $candidate == "$current"* ]] && COMPREPLY+=("$candidate")
  done < <(_sparkwright_candidates "$command" "$before" "$current" "$count")
}

complete -o default -F _sparkwright sparkwright
