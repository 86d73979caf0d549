
_sparkwright() {
  local current=$words[CURRENT] previous=$words[CURRENT-1] command= word
  local -a candidates
  if [[ $current == --*=* ]]; then
    previous=${current%%=*} current=${current#*=}
    compset -P '*='
  fi
  for word in ${words[2,CURRENT-1]}; do
    if [[ $word != -* ]]; then
      command=$word
      break
    fi
  done
  candidates=(${(f)"$(emulate -L sh; _sparkwright_candidates "$command" "$previous" "$current" 2>/dev/null)"})
  if (( $#candidates )); then compadd -- $candidates; else _files; fi
}

(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
compdef _sparkwright sparkwright
