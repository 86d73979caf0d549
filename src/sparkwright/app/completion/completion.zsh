
_sparkwright() {
  local current=$words[CURRENT] previous=$words[CURRENT-1] command= word
  local -i count=0
  local -a candidates
  if [[ $current == --*=* ]]; then
    previous=${current%%=*} current=${current#*=}
    compset -P '*='
  fi
  for word in ${words[2,CURRENT-1]}; do
    if [[ $word != -* ]]; then
      if [[ -n $command ]]; then count+=1; else command=$word; fi
    fi
  done
  candidates=(${(f)"$(emulate -L sh; _sparkwright_candidates "$command" "$previous" "$current" "$count")"})
  if (( $#candidates )); then compadd -- $candidates; else _files; fi
}

(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
compdef _sparkwright sparkwright
