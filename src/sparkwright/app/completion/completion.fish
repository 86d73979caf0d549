# Completion of sparkwright. Names of hosts, recipes and playbooks are read from the project's files when Tab is pressed.

# Prints the project's folder: the current one or one above it.
function __sparkwright_project
    set -l folder $PWD
    while test -n "$folder"
        if test -d "$folder/hosts"; and test -d "$folder/recipes" -o -d "$folder/playbooks"
            echo $folder
            return
        end
        set folder (string replace -r '/[^/]*$' '' -- $folder)
    end
end

# Prints the names of the .yml files in a folder of the project and its subfolders that match a regular expression.
function __sparkwright_names -a folder pattern
    set -l project (__sparkwright_project)
    test -n "$project"; or return
    set -l files $project/$folder/*.yml $project/$folder/*/*.yml
    string replace -- "$project/$folder/" '' $files | string match -r "^$pattern(?=\.yml\$)" | string match -v groups
end

function __sparkwright_groups
    set -l groups (__sparkwright_project)/hosts/groups.yml
    test -f "$groups" -a -r "$groups"; and string replace -rf '^([A-Za-z0-9_][A-Za-z0-9_.-]*):.*' '$1' <$groups
end

function __sparkwright_values -a kind
    set -l name '[A-Za-z0-9_.-]+'
    switch $kind
        case hosts
            set -l list (string match -r '.*,' -- (string replace -r '^--[a-z-]+=' '' -- (commandline -ct)))
            for host in (__sparkwright_names hosts $name) (__sparkwright_groups) all
                echo "$list$host"
            end
        case recipes
            __sparkwright_names recipes "(?:$name/)?$name"
        case playbooks
            begin; __sparkwright_names playbooks $name; printf '%s\n' @PLAYBOOKS@; end | sort -u
@VALUES@
    end
end

complete -c sparkwright -f
complete -c sparkwright -n __fish_use_subcommand -l help -d 'Show the commands'
complete -c sparkwright -n __fish_use_subcommand -l list -d 'List the commands'
complete -c sparkwright -n __fish_use_subcommand -l version -d 'Show the version'
@COMMANDS@
