# Packages of the program and its data, by `cpack --preset release`: a .deb whose dependencies are Debian's packages, and a
# .tar.gz that carries the libraries with it. tools/python makes Python's package from the same components.

# Libraries that stand beside the program go before the system's; the .deb has none there.
set_target_properties(moesim PROPERTIES INSTALL_RPATH "$ORIGIN/../lib/moesim")
# The C and C++ runtimes are of the system: of another version than the system's loader expects, they would not start.
install(RUNTIME_DEPENDENCY_SET moesim_libraries
        PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|dl|rt|pthread|stdc[+][+]|gcc_s)[.]so"
        LIBRARY DESTINATION lib/moesim COMPONENT libraries EXCLUDE_FROM_ALL)

# Licences: our own, and of what is compiled or copied in, as Debian's packages have them.
set(licences ${CMAKE_INSTALL_DATADIR}/doc/moesim)
install(FILES LICENSE DESTINATION ${licences} RENAME copyright COMPONENT program)
install(FILES CHANGELOG.md CITATION.cff DESTINATION ${licences} COMPONENT program)
# The help of every verb as one page and as a manual page, from the program itself.
find_package(Python3 COMPONENTS Interpreter)
if(Python3_FOUND)
  install(CODE "execute_process(COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tools/docs/write --verbs
                ${PROJECT_BINARY_DIR}/verbs.md --man ${PROJECT_BINARY_DIR}/moesim.1 $<TARGET_FILE:moesim>
                COMMAND_ERROR_IS_FATAL ANY)" COMPONENT program)
  install(FILES ${PROJECT_BINARY_DIR}/verbs.md DESTINATION ${licences} COMPONENT program)
  install(FILES ${PROJECT_BINARY_DIR}/moesim.1 DESTINATION ${CMAKE_INSTALL_DATADIR}/man/man1 COMPONENT program)
endif()
foreach(package libeigen3-dev nlohmann-json3-dev libcli11-dev libspdlog-dev libfmt-dev libsqlite3-dev libtbb-dev zlib1g-dev
                libminizip-dev robin-map-dev)
  install(FILES /usr/share/doc/${package}/copyright DESTINATION ${licences}/licences RENAME ${package} COMPONENT program
          OPTIONAL)
endforeach()

set(CPACK_GENERATOR DEB TGZ)
set(CPACK_PACKAGE_CONTACT "The moesim developers")
set(CPACK_PACKAGE_VENDOR "The moesim developers")
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)
set(CPACK_PACKAGE_FILE_NAME moesim-${PROJECT_VERSION}-linux-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS gnuplot-nox)
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION "moesim predicts how fast a Mixture-of-Experts language model serves on a
cluster of GPUs. No GPU is needed to run moesim.")
# Which components a package has differs by its kind.
set(CPACK_PROJECT_CONFIG_FILE ${CMAKE_CURRENT_LIST_DIR}/components.cmake)
include(CPack)
