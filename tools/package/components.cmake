# Read by cpack for each kind of package. Debian has the libraries as packages; an archive carries them.
set(CPACK_COMPONENTS_ALL program)
if(CPACK_GENERATOR STREQUAL TGZ)
  list(APPEND CPACK_COMPONENTS_ALL libraries)
  set(CPACK_COMPONENT_INCLUDE_TOPLEVEL_DIRECTORY ON)
endif()
